-- Appends of single events, and events of short streams, cost less. On a log with events the index is
-- built concurrently, before this file runs: see migrate.py.

-- The index by type within a stream has no entries for the first hundred events of a stream. They are
-- scanned instead: most streams are shorter, and the entries were a tenth of the server's work.
create index if not exists events_long_stream
    on {schema}.events (stream_key, event_type, stream_seq)
    where stream_key is not null and stream_seq > 100;

drop index {schema}.events_stream_type;

-- Locks, numbers, checks and inserts one group of appends in one call. The server completes it alone:
-- a client that stops or dies holds no lock. It runs as its owner, so that the trigger can tell its
-- rows from those that a role inserts itself; the caller still needs the privilege to insert. The
-- lock is acquired before the INSERT begins, which then takes a snapshot with every earlier append.
-- Returns the head before the group, its time, and the stream number of each event.
create or replace function {schema}.append_group(
    p_lock bigint, p_lock_wait_ms integer, p_rules integer, p_rows {schema}.new_event[],
    p_ranks integer[],  -- the rank of each event among those of its stream in this group; null: 1
    p_tagged boolean,
    p_head bigint  -- the required head, for an append whose contexts were evaluated there
) returns bigint[] language plpgsql volatile security definer
set enable_seqscan = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp as $$
declare
    v_wait     text := set_config('lock_timeout', p_lock_wait_ms::text, true);
    v_locked   boolean := pg_advisory_xact_lock(p_lock) is not null;
    v_now      bigint := {schema}.now_us();
    v_checked  text := set_config('seriatim.checked', 'on', true);  -- for the trigger: see 0006
    v_placed   bigint[];
    v_notified boolean;
    v_event    {schema}.new_event;  -- the event of a group of one
    v_log      record;              -- what decides its number
    v_seq      bigint;
begin
    -- Inside this function current_user is its owner; SET ROLE and the login tell who called it.
    if not has_table_privilege(
        coalesce(nullif(current_setting('role'), 'none'), session_user)::name,
        {schema_text} || '.events', 'insert'
    ) then
        raise exception using errcode = '42501', message = 'permission denied for table events';
    end if;
    if cardinality(p_rows) = 1 then
        -- A look-up and a plain insert start in half the time of the statement for groups.
        v_event := p_rows[1];
        select coalesce((select max(e.position) from {schema}.events e), 0) as head,
               coalesce((select max(d.version) from {schema}.declarations d), 0) as rules,
               h.stream_seq as last_seq, h.event_type as last_type, k.name, k.first_seq,
               k.opening_type, k.closing_types,
               k.closed and not exists (
                   select from {schema}.kind_types t
                   where t.kind = k.name and t.event_type = v_event.event_type
               ) as closed
        into v_log
        from (select) only_row
        left join lateral (
            select e.stream_seq, e.event_type from {schema}.events e
            where e.stream_key = v_event.stream_key
            order by e.stream_seq desc limit 1
        ) h on true
        left join {schema}.stream_kinds k on k.name = v_event.stream_type;
        if v_log.rules = p_rules and (p_head is null or p_head = v_log.head) then
            if v_event.stream_key is not null then
                v_seq := coalesce(v_log.last_seq + 1, v_log.first_seq, 1);
                if v_event.given_seq <> v_seq or p_ranks[1] <> 1 or (v_log.name is not null and (
                    v_log.last_type = any (v_log.closing_types)
                    or (v_log.opening_type is not null
                        and (v_event.event_type = v_log.opening_type) <> (v_seq = v_log.first_seq))
                    or v_log.closed
                )) then
                    perform {schema}.refuse_event();
                end if;
            end if;
            insert into {schema}.events values (
                v_log.head + 1, v_log.head + 1 - v_event.append_offset, v_now, v_seq,
                v_event.occurred_us, v_event.event_version, v_event.event_key, v_event.stream_key,
                v_event.idempotency_index, v_event.payload_hash, v_event.tenant_id,
                v_event.event_id, v_event.stream_type, v_event.stream_id, v_event.event_type,
                v_event.occurred_at, v_event.producer_id, v_event.source_system,
                v_event.source_subsystem, v_event.actor_type, v_event.actor_id,
                v_event.request_id, v_event.correlation_id, v_event.causation_id,
                v_event.idempotency_key, v_event.app_id, v_event.env_id, v_event.metadata,
                v_event.payload, v_event.tags);
            v_placed := array[v_log.head, v_now, v_seq];
        end if;
    else
        -- Ranks come from the client. Numbers below the first or with a gap are found here, equal
        -- ones by the unique index on streams.
        if p_ranks is not null and (exists (
            select from unnest(p_rows) with ordinality i
            where i.stream_key is not null
            group by i.stream_key
            having min(p_ranks[i.ordinality]) <> 1 or max(p_ranks[i.ordinality]) <> count(*)
        ) or exists (
            select from unnest(p_rows) with ordinality i
            join {schema}.stream_kinds k
                on k.name = i.stream_type and i.event_type = any (k.closing_types)
            join unnest(p_rows) with ordinality n
                on n.stream_key = i.stream_key and p_ranks[n.ordinality] > p_ranks[i.ordinality]
        )) then
            perform {schema}.refuse_event();
        end if;
        with placed as (
            insert into {schema}.events
            select l.head + i.ordinality,
                   l.head + i.ordinality - i.append_offset,
                   v_now,
                   case
                       when i.stream_key is null then null
                       when (i.given_seq is null or i.given_seq = s.seq) and (k.name is null or (
                           (h.event_type = any (k.closing_types)) is not true
                           and (k.opening_type is null
                                or (i.event_type = k.opening_type) = (s.seq = k.first_seq))
                           and (not k.closed or exists (
                                select from {schema}.kind_types t
                                where t.kind = k.name and t.event_type = i.event_type))
                       )) then s.seq
                       else {schema}.refuse_event()
                   end,
                   i.occurred_us, i.event_version, i.event_key, i.stream_key, i.idempotency_index,
                   i.payload_hash, i.tenant_id, i.event_id, i.stream_type, i.stream_id,
                   i.event_type, i.occurred_at, i.producer_id, i.source_system,
                   i.source_subsystem, i.actor_type, i.actor_id, i.request_id, i.correlation_id,
                   i.causation_id, i.idempotency_key, i.app_id, i.env_id, i.metadata, i.payload,
                   i.tags
            from (select coalesce(max(e.position), 0) as head from {schema}.events e) l
            cross join unnest(p_rows) with ordinality i
            left join lateral (
                select e.stream_seq, e.event_type from {schema}.events e
                where e.stream_key = i.stream_key
                order by e.stream_seq desc limit 1
            ) h on true
            -- The fence keeps this a look-up by name for each row, whatever the planner expects.
            left join lateral (
                select * from {schema}.stream_kinds d where d.name = i.stream_type offset 0
            ) k on true
            cross join lateral (
                select coalesce(h.stream_seq + 1, k.first_seq, 1)
                     + coalesce(p_ranks[i.ordinality], 1) - 1 as seq
            ) s
            where p_rules = (select coalesce(max(d.version), 0) from {schema}.declarations d)
              and (p_head is null or p_head = l.head)
            returning position, stream_seq
        )
        select array[min(p.position) - 1, v_now] || array_agg(p.stream_seq order by p.position)
        into v_placed from placed p;
    end if;
    if v_placed[1] is null then
        raise exception using errcode = 'SQ002', message = 'the declarations or the head have changed';
    end if;
    if p_tagged then
        insert into {schema}.event_tags
        select distinct k, v_placed[1] + i.ordinality
        from unnest(p_rows) with ordinality i, unnest(i.tag_keys) k;
    end if;
    v_checked := set_config('seriatim.checked', '', true);
    v_notified := pg_notify({channel}, '') is not null;
    return v_placed;
end $$;
