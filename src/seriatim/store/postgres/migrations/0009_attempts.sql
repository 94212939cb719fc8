-- The attempts of each subscription at the batch after its cursor, and the batches that were skipped.
-- Attempts belong to the position of the cursor: a program that does not know them moves it on.

alter table {schema}.cursors
    add column attempts      integer not null default 0,
    add column attempt_after bigint,  -- the position of the cursor at the time
    add column attempt_first bigint,  -- the batch
    add column attempt_last  bigint,
    add column parked_us     bigint;  -- null unless the subscription waits for an operator

create table {schema}.skipped_batches (
    tenant_id      text collate "C" not null,
    name           text collate "C" not null,
    first_position bigint           not null,
    last_position  bigint           not null,
    attempts       integer          not null,
    error          text             not null,
    skipped_us     bigint           not null,
    skipped_by     text,  -- the operator; null if the subscription skipped it by its policy
    reason         text             not null,
    primary key (tenant_id, name, first_position)
);

create policy everybody on {schema}.skipped_batches using (true) with check (true);
create policy one_tenant on {schema}.skipped_batches as restrictive for select using (
    case when tenant_id <> (select nullif(current_setting('seriatim.tenant', true), ''))
        then null else true end is not null);
alter table {schema}.skipped_batches enable row level security, force row level security;

-- A role that may use the cursors may use the new table, so that no grant is needed.
do $$
declare
    v_role  text;
    v_right text;
begin
    for v_role, v_right in
        select case when a.grantee = 0 then 'public' else a.grantee::regrole::text end,
               case when a.privilege_type = 'UPDATE' then 'update, delete' else a.privilege_type end
        from pg_class c, aclexplode(c.relacl) a
        where c.oid = '{schema}.cursors'::regclass and a.grantee <> c.relowner
          and a.privilege_type in ('SELECT', 'INSERT', 'UPDATE')
    loop
        execute format('grant %s on {schema}.skipped_batches to %s', v_right, v_role);
    end loop;
end $$;
