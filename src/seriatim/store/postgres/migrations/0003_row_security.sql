-- The second protection of reads: a transaction that has set its tenant sees no rows of other tenants.
-- It does so by set_config('seriatim.tenant', …, true), which ends with the transaction. Without the
-- setting all rows are visible: to appends, which are numbered across tenants, to operators, and to
-- programs older than this migration.

-- The setting is read in a subquery, once per statement instead of once per row. The test is written
-- as IS NOT NULL because the planner assumes that this is true for nearly all rows. It is true for all
-- rows of a statement that selects the tenant itself, so the plans of such statements do not change.
create policy everybody on {schema}.events using (true) with check (true);
create policy one_tenant on {schema}.events as restrictive for select using (
    case when tenant_id <> (select nullif(current_setting('seriatim.tenant', true), ''))
        then null else true end is not null);
alter table {schema}.events enable row level security, force row level security;

-- A key belongs to the tenant of its event, which the policy of events decides. Here the setting is
-- read for each row: scans along keys visit few, and planning one more subquery would cost more.
create policy everybody on {schema}.event_tags using (true) with check (true);
create policy one_tenant on {schema}.event_tags as restrictive for select using (
    coalesce(current_setting('seriatim.tenant', true), '') = ''
    or (select e.position from {schema}.events e where e.position = event_tags.position) is not null);
alter table {schema}.event_tags enable row level security, force row level security;

create policy everybody on {schema}.commands using (true) with check (true);
create policy one_tenant on {schema}.commands as restrictive for select using (
    case when tenant_id <> (select nullif(current_setting('seriatim.tenant', true), ''))
        then null else true end is not null);
alter table {schema}.commands enable row level security, force row level security;

create policy everybody on {schema}.cursors using (true) with check (true);
create policy one_tenant on {schema}.cursors as restrictive for select using (
    case when tenant_id <> (select nullif(current_setting('seriatim.tenant', true), ''))
        then null else true end is not null);
alter table {schema}.cursors enable row level security, force row level security;

create policy everybody on {schema}.leases using (true) with check (true);
create policy one_tenant on {schema}.leases as restrictive for select using (
    case when tenant_id <> (select nullif(current_setting('seriatim.tenant', true), ''))
        then null else true end is not null);
alter table {schema}.leases enable row level security, force row level security;

-- A view reads with the rights of its owner, to whom policies may not apply, so it repeats the test.
create or replace view {schema}.readable_events as
select position,
       append_position,
       coalesce(event_id, event_key::text)                   as event_id,
       tenant_id, stream_type, stream_id, stream_seq, event_type, event_version,
       occurred_at,
       to_timestamp(coalesce(occurred_us, recorded_us) / 1e6) as occurred,
       to_timestamp(recorded_us / 1e6)                        as recorded,
       producer_id, source_system, source_subsystem, actor_type, actor_id,
       request_id, correlation_id, causation_id, idempotency_key, app_id, env_id,
       metadata::jsonb as metadata,
       payload::jsonb  as payload,
       'sha256:' || encode(payload_hash, 'hex') as payload_hash,
       tags::jsonb     as tags
from {schema}.events
where case when tenant_id <> (select nullif(current_setting('seriatim.tenant', true), ''))
    then null else true end is not null;

-- As before, but the number before the first event of a stream is computed before it is looked up.
-- Under a policy only leakproof conditions may use an index, and an addition is not leakproof.
create or replace function {schema}.check_group() returns trigger
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_first  bigint;
    v_last   bigint;
    v_count  bigint;
    v_before bigint;
    v_told   boolean;
begin
    select a.first, a.last, a.count,
           coalesce((select max(e.position) from {schema}.events e where e.position < a.first), 0)
    into v_first, v_last, v_count, v_before
    from (select min(position), max(position), count(*) from added) a (first, last, count);
    if v_count = 0 then
        return null;
    end if;
    if v_first <> v_before + 1 or v_last - v_first + 1 <> v_count then
        raise exception using errcode = 'SQ001', message = 'positions must follow without a gap';
    end if;
    if exists (
        select from (
            -- Nothing can lie before a first number, which is 0 or 1: no number, and no look.
            select g.*, k.closing_types, coalesce(k.first_seq, 1) as begins,
                   nullif(g.first, coalesce(k.first_seq, 1)) - 1 as before
            from (
                select a.stream_key, min(a.stream_type) as stream_type, min(a.stream_seq) as first,
                       max(a.stream_seq) as last, count(*) as count
                from added a where a.stream_key is not null group by a.stream_key
            ) g
            left join {schema}.stream_kinds k on k.name = g.stream_type
            offset 0
        ) s
        left join {schema}.events p on p.stream_key = s.stream_key and p.stream_seq = s.before
        where s.last - s.first + 1 <> s.count
           or (p.position is null and s.first <> s.begins)
           or p.event_type = any (s.closing_types)
           -- A kind may have been declared to begin at 0 when its streams had begun at 1.
           or (s.first = 0 and exists (
               select from {schema}.events n
               where n.stream_key = s.stream_key and n.stream_seq > s.last))
    ) or exists (
        select from added a join {schema}.stream_kinds k on k.name = a.stream_type
        where (k.opening_type is not null
               and (a.event_type = k.opening_type) <> (a.stream_seq = k.first_seq))
           or (a.event_type = any (k.closing_types) and exists (
               select from {schema}.events n
               where n.stream_key = a.stream_key and n.stream_seq = a.stream_seq + 1))
           or (k.closed and not exists (
               select from {schema}.kind_types t
               where t.kind = k.name and t.event_type = a.event_type))
    ) then
        raise exception using errcode = 'SQ001', message = 'a stream''s rules do not allow this';
    end if;
    v_told := pg_notify({channel}, '') is not null;
    return null;
end $$;
