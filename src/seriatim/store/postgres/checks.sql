-- The statements of verify and doctor; {schema} is the schema of the log.

-- name: count_positions
select count(*), coalesce(min(position), 1), coalesce(max(position), 0) from {schema}.events;

-- name: find_broken_streams
-- Streams that do not begin at their kind's first number or have gaps, in index order.
select min(e.stream_type), min(e.stream_id), min(e.stream_seq), max(e.stream_seq), count(*)
from {schema}.events e
where e.stream_key is not null
group by e.stream_key
having max(e.stream_seq) - min(e.stream_seq) + 1 <> count(*)
    or min(e.stream_seq) <> coalesce(
        (select k.first_seq from {schema}.stream_kinds k where k.name = min(e.stream_type)), 1)
limit 10;

-- name: find_reopened_streams
select e.stream_type, e.stream_id, e.stream_seq
from {schema}.events e
join {schema}.stream_kinds k on k.name = e.stream_type and e.event_type = any (k.closing_types)
where exists (
    select from {schema}.events later
    where later.stream_key = e.stream_key and later.stream_seq > e.stream_seq)
limit 10;

-- name: list_keyed_events
select position, tenant_id, event_type, tags,
       case when event_type = any (%(types)s) then payload end
from {schema}.events
where position > %(after)s and position <= %(until)s
  and (tags is not null or event_type = any (%(types)s))
order by position limit %(limit)s;

-- name: count_missing_keys
select count(*), min(k.position)
from unnest(%(keys)s::uuid[], %(positions)s::bigint[]) k (tag_key, position)
where (select true from {schema}.event_tags t
       where t.tag_key = k.tag_key and t.position = k.position) is null;

-- name: count_keys
select count(*) from {schema}.event_tags where position <= %(until)s;

-- name: list_invalid_indexes
select c.relname from pg_index i
join pg_class c on c.oid = i.indexrelid
join pg_class t on t.oid = i.indrelid
where t.relnamespace = {schema_text}::regnamespace and not (i.indisvalid and i.indisready);

-- name: list_settings
select name, setting from pg_settings
where name in ('synchronous_commit', 'fsync', 'full_page_writes', 'idle_in_transaction_session_timeout',
               'autovacuum', 'server_version', 'max_connections');

-- name: list_disabled_triggers
select tgrelid::regclass::text, tgname from pg_trigger
where not tgisinternal and tgenabled not in ('O', 'A')
  and tgrelid in (select oid from pg_class where relnamespace = {schema_text}::regnamespace);

-- name: count_triggers
select count(*) from pg_trigger
where tgrelid = to_regclass({schema_text} || '.events') and tgname in ('check_group', 'refuse_change');

-- name: list_unprotected_tables
-- Tables with rows of tenants on which row-level security is off, or not forced for the owner.
select c.relname from pg_class c
where c.relnamespace = {schema_text}::regnamespace
  and c.relname in ('events', 'event_tags', 'commands', 'cursors', 'leases', 'skipped_batches')
  and not (c.relrowsecurity and c.relforcerowsecurity and exists (
      select from pg_policy p
      where p.polrelid = c.oid and p.polname = 'one_tenant' and not p.polpermissive))
order by 1;

-- name: select_row_security
select r.rolsuper or r.rolbypassrls, r.rolname from pg_roles r where r.rolname = current_user;

-- name: select_privileges
select has_table_privilege({schema_text} || '.events', 'select'),
       has_table_privilege({schema_text} || '.events', 'insert'),
       has_table_privilege({schema_text} || '.events', 'update')
           or has_table_privilege({schema_text} || '.events', 'delete')
           or has_table_privilege({schema_text} || '.events', 'truncate'),
       has_table_privilege({schema_text} || '.cursors', 'update')
           -- Null in a schema without this table.
           and coalesce(has_table_privilege(to_regclass({schema_text} || '.skipped_batches'),
                                            'insert'), true),
       has_table_privilege({schema_text} || '.leases', 'update'),
       has_table_privilege({schema_text} || '.commands', 'insert'),
       current_user;

-- name: list_long_transactions
select pid, coalesce(application_name, ''), state,
       extract(epoch from clock_timestamp() - xact_start)::int
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
  and xact_start < clock_timestamp() - interval '60 seconds'
order by xact_start limit 5;

-- name: list_lock_holders
select l.pid, a.application_name, a.state, extract(epoch from clock_timestamp() - a.xact_start)::int
from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and l.granted and l.objsubid = 1
  and l.database = (select oid from pg_database where datname = current_database())
  and (l.classid::bigint << 32 | l.objid::bigint) = (
      select ('x' || right(replace(log_id::text, '-', ''), 16))::bit(64)::bigint from {schema}.log)
  and a.xact_start < clock_timestamp() - interval '5 seconds';

-- name: select_size
select c.reltuples::bigint, pg_total_relation_size(c.oid), pg_indexes_size(c.oid)
from pg_class c where c.oid = to_regclass({schema_text} || '.events');
