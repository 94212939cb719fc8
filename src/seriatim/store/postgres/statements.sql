-- The statements of the Postgres store; {schema} is the schema of the log.

-- name: select_server_info
-- The properties of log and server that are read when a connection is opened.
select l.log_id::text, l.epoch, l.fingerprint = {schema}.fingerprint() as same_server,
       pg_is_in_recovery() as standby, current_setting('synchronous_commit') as synchronous_commit,
       current_setting('server_version_num')::int as server_version,
       current_setting('default_transaction_isolation') as isolation,
       (select oid from pg_type where typname = '_new_event'
          and typnamespace = {schema_text}::regnamespace)::bigint as row_array,
       (select oid from pg_type where typname = 'new_event'
          and typnamespace = {schema_text}::regnamespace)::bigint as row_type,
       pg_backend_pid() as process_id
from {schema}.log l;

-- name: raise_epoch
select {schema}.raise_epoch(%s);

-- name: select_identity
select log_id::text, epoch from {schema}.log;

-- name: set_tenant
-- Restrict the transaction to the rows of one tenant (row-level security). Without sorting, a read in
-- the order of an index uses it: a planner that expects few events, for lack of statistics about a
-- value, would otherwise collect and sort all of them for one page.
select set_config('seriatim.tenant', $1, true), set_config('enable_sort', $2, true);

-- name: set_tenant_and_timeout
-- The same, with a statement timeout in milliseconds.
select set_config('seriatim.tenant', $1, true), set_config('enable_sort', $2, true),
       set_config('statement_timeout', $3, true);

-- name: use_index_order
-- For the rest of the transaction, read in the order of an index, whatever the planner estimates: a
-- bitmap or a sort reads all matching rows before a limit applies.
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('jit', 'off', true);

-- name: select_size
-- Of events and tags with their indexes, and of the indexes alone.
select sum(pg_total_relation_size(c.oid))::bigint, sum(pg_indexes_size(c.oid))::bigint
from (values ('{schema}.events'::regclass::oid), ('{schema}.event_tags'::regclass::oid)) c (oid);

-- name: select_head
select coalesce(max(position), 0) from {schema}.events;

-- name: select_head_and_identity
select coalesce((select max(position) from {schema}.events), 0), log_id::text, epoch
from {schema}.log;

-- name: append_events
select {schema}.append_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: append_decided_events
-- Appends of the validated path: with given sequence numbers and time, while the lock is held. The
-- timeout of the lock and the version of the rules, which `decide` has compared, are left out.
select {schema}.append_events(%s, null, null, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: lock_log
select pg_advisory_xact_lock(%s);

-- name: lock_log_and_set_timeout
-- Take the lock, and set a timeout in milliseconds for all later statements of the transaction.
select pg_advisory_xact_lock(%s), set_config('statement_timeout', %s, true);

-- name: set_statement_timeout
select set_config('statement_timeout', $1, $2);

-- name: select_log_state
-- Under the lock: the head, the clock, the version of the rules, the isolation level and the tenant.
-- They are only correct at READ COMMITTED and in a transaction that is not restricted to a tenant.
select coalesce((select max(position) from {schema}.events), 0), {schema}.now_us(),
       coalesce((select max(version) from {schema}.declarations), 0),
       current_setting('transaction_isolation'), current_setting('seriatim.tenant', true);

-- name: find_stream_heads
select h.stream_seq, h.event_type
from unnest(%s) with ordinality k (stream_key, nr)
left join lateral (
    select e.stream_seq, e.event_type from {schema}.events e
    where e.stream_key = k.stream_key order by e.stream_seq desc limit 1
) h on true
order by k.nr;

-- name: find_stored_ids
select {columns}, e.event_key from {schema}.events e where e.event_key = any (%s);

-- name: find_stored_keys
select {columns}, e.idempotency_index from {schema}.events e where e.idempotency_index = any (%s);

-- name: find_stored_commands
select command_key, request_hash, response, first_position, last_position
from {schema}.commands where command_key = any (%s);

-- name: list_newest_events
-- The newest events of each tenant after its position, limited in events and bytes per tenant (the
-- newest is always included), with the number of events without the limit in bytes. There is no join:
-- a planner that overestimates the limits would read the whole log instead.
select {columns}, e.total, t.nr
from unnest(%(tenants)s::text[], %(afters)s::bigint[]) with ordinality t (tenant_id, after, nr)
cross join lateral (
    select n.*, count(*) over () as total,
           sum(octet_length(n.payload)) over (
               order by n.position desc rows between unbounded preceding and 1 preceding) as newer_bytes
    from (
        select f.* from {schema}.events f
        where f.tenant_id = t.tenant_id and f.position > t.after
        order by f.position desc limit %(events)s
    ) n
) e
where coalesce(e.newer_bytes, 0) < %(bytes)s;

-- name: list_events_in_range
select {columns} from {schema}.events e where e.position between %s and %s order by e.position;

-- name: restore_events
-- Rows of an archive, with given times. An idempotency key that is stored already stays with its event.
with i as materialized (
    select %(head)s::bigint + r.ordinality as position, r.*,
           row_number() over (partition by r.idempotency_index order by r.ordinality) as nth
    from unnest(%(rows)s) with ordinality r
), placed as (
    insert into {schema}.events
    select i.position, i.position - i.append_offset, (%(times)s::bigint[])[i.ordinality],
           i.given_seq, i.occurred_us, i.event_version, i.event_key, i.stream_key,
           case when i.nth = 1 and not exists (
               select from {schema}.events e where e.idempotency_index = i.idempotency_index
           ) then i.idempotency_index end,
           i.payload_hash, i.tenant_id, i.event_id, i.stream_type, i.stream_id, i.event_type,
           i.occurred_at, i.producer_id, i.source_system, i.source_subsystem, i.actor_type,
           i.actor_id, i.request_id, i.correlation_id, i.causation_id, i.idempotency_key,
           i.app_id, i.env_id, i.metadata, i.payload, i.tags
    from i order by i.position
)
insert into {schema}.event_tags select k, i.position from i, unnest(i.tag_keys) k;

-- name: insert_command
insert into {schema}.commands
    (command_key, tenant_id, request_hash, response, first_position, last_position)
values (%s, %s, %s, %s, %s, %s);

-- name: find_event_by_id
select {columns} from {schema}.events e where e.event_key = %s and e.tenant_id = %s;

-- name: find_event_id
select coalesce(event_id, event_key::text) from {schema}.events where position = %s;

-- name: find_last_event
select {columns} from {schema}.events e where e.stream_key = %s
order by e.stream_seq desc limit 1;

-- name: find_last_events
select {columns}
from unnest(%s) with ordinality k (stream_key, nr)
left join lateral (
    select * from {schema}.events f
    where f.stream_key = k.stream_key order by f.stream_seq desc limit 1
) e on true
order by k.nr;

-- name: list_streams
-- Streams in the order of their first events, each with its last event. A page reads a bounded number
-- of events: few of them may open a stream. The row without a type has the last position that was
-- read, and how many events.
with scanned as materialized (
    select e.position, e.stream_key, e.stream_seq, e.stream_type, e.stream_id
    from {schema}.events e
    where e.tenant_id = %(tenant_id)s and e.position > %(after)s
    order by e.position limit %(scanned)s
), opened as (
    select f.stream_type, f.stream_id, f.position, h.position as last_position, h.stream_seq,
           h.event_type
    from scanned f
    cross join lateral (
        select e.position, e.stream_seq, e.event_type from {schema}.events e
        where e.stream_key = f.stream_key order by e.stream_seq desc limit 1
    ) h
    where f.stream_seq <= 1
      and not exists (
          -- not by the kind's first number: the kind may have been declared after the first event
          select 1 from {schema}.events g
          where g.stream_key = f.stream_key and g.stream_seq < f.stream_seq)
      and (%(stream_type)s::text is null or f.stream_type = %(stream_type)s)
    order by f.position limit %(limit)s
)
select * from opened
union all
select null, null, max(position), null, count(*), null from scanned;

-- name: limit_page_bytes
-- The rows of a page up to the one whose payload reaches the limit in bytes. The size of a payload is
-- known without reading it, and the window processes rows in the order of the page.
select * from (
    select p.*, sum(octet_length(p.payload)) over (
        rows between unbounded preceding and 1 preceding) as bytes_before
    from ({page}) p) p
where coalesce(p.bytes_before, 0) < %(max_bytes)s

-- name: list_event_types
-- The distinct types of a tenant in a range of names: a loose scan of the index on types.
with recursive known (event_type) as (
    (select e.event_type from {schema}.events e
     where e.tenant_id = %(tenant)s and e.event_type >= %(first)s and e.event_type < %(end)s
     order by e.event_type limit 1)
    union all
    select (select e.event_type from {schema}.events e
            where e.tenant_id = %(tenant)s and e.event_type > k.event_type
              and e.event_type < %(end)s
            order by e.event_type limit 1)
    from known k where k.event_type is not null
)
select event_type from known where event_type is not null limit %(limit)s;

-- name: count_event_types
-- The distinct types of a tenant by name, found by a loose scan of the index on types, each with its
-- number of events up to a bound and its last position. It needs `use_index_order`, and
-- ranges instead of equality: with them, only the index on types has the requested order. The
-- planner would otherwise look for the events of a rare type among all positions.
with recursive known (event_type) as (
    (select e.event_type from {schema}.events e
     where e.tenant_id = %(tenant)s and e.event_type >= %(first)s and e.event_type > %(after)s
       and e.event_type < %(end)s
     order by e.event_type limit 1)
    union all
    select (select e.event_type from {schema}.events e
            where e.tenant_id = %(tenant)s and e.event_type > k.event_type
              and e.event_type < %(end)s
            order by e.event_type limit 1)
    from known k where k.event_type is not null
)
select k.event_type, c.counted, l.position
from (select event_type from known where event_type is not null limit %(limit)s) k
cross join lateral (
    select count(*) from (
        select e.position from {schema}.events e
        where e.tenant_id = %(tenant)s
          and e.event_type >= k.event_type and e.event_type <= k.event_type
        order by e.event_type, e.position limit %(counted)s) e) c (counted)
cross join lateral (
    select e.position from {schema}.events e
    where e.tenant_id = %(tenant)s
      and e.event_type >= k.event_type and e.event_type <= k.event_type
    order by e.event_type desc, e.position desc limit 1) l;

-- name: list_declarations
select version, what, body from {schema}.declarations order by version;

-- name: insert_declaration
insert into {schema}.declarations (version, what, name, event_version, body)
values (%s, %s, %s, %s, %s);

-- name: list_tenants
-- A loose index scan from tenant to tenant, which does not read all events.
with recursive tenants (tenant_id) as (
    (select tenant_id from {schema}.events order by tenant_id limit 1)
    union all
    select (select e.tenant_id from {schema}.events e where e.tenant_id > t.tenant_id
            order by e.tenant_id limit 1)
    from tenants t where t.tenant_id is not null
)
select tenant_id from tenants where tenant_id is not null limit %s;

-- name: find_event_of_type
-- A loose index scan from tenant to tenant, with one index look-up of the type for each.
with recursive tenants (tenant_id) as (
    (select tenant_id from {schema}.events order by tenant_id limit 1)
    union all
    select (select e.tenant_id from {schema}.events e where e.tenant_id > t.tenant_id
            order by e.tenant_id limit 1)
    from tenants t where t.tenant_id is not null
)
select 1 from tenants t
where exists (
    select from {schema}.events e where e.tenant_id = t.tenant_id and e.event_type = %(type)s)
limit 1;

-- name: find_newer_event_of_type
select 1 from {schema}.events where position > %(after)s and event_type = %(type)s limit 1;

-- name: insert_kind
insert into {schema}.stream_kinds (name, first_seq, opening_type, closing_types, closed)
values (%s, %s, %s, %s, %s);

-- name: insert_kind_type
insert into {schema}.kind_types (kind, event_type) values (%s, %s) on conflict do nothing;

-- name: find_cursor
select tenant_id, purpose, name, position, log_id::text, epoch, tip, query, updated_us,
       attempts, failures, attempt_after, attempt_first, attempt_last, parked_us
from {schema}.cursors where tenant_id = %s and purpose = %s and name = %s;

-- name: list_cursors
select tenant_id, purpose, name, position, log_id::text, epoch, tip, query, updated_us,
       attempts, failures, attempt_after, attempt_first, attempt_last, parked_us
from {schema}.cursors where tenant_id = %s and purpose = %s order by name;

-- name: list_cursors_after
select tenant_id, purpose, name, position, log_id::text, epoch, tip, query, updated_us,
       attempts, failures, attempt_after, attempt_first, attempt_last, parked_us
from {schema}.cursors where tenant_id = %s and purpose = %s and name > %s order by name limit %s;

-- name: check_cursor_limit
select exists (
    select 1 from {schema}.cursors
    where tenant_id = %(tenant_id)s and purpose = %(purpose)s and name = %(name)s
) or (select count(*) from (
    select 1 from {schema}.cursors
    where tenant_id = %(tenant_id)s and purpose = %(purpose)s limit %(limit)s
) c) < %(limit)s;

-- name: lock_cursor
-- The same statement restricts the transaction to the cursor's tenant.
select pg_advisory_xact_lock(hashtextextended(%s, 0)), set_config('seriatim.tenant', %s, true);

-- name: upsert_cursor
insert into {schema}.cursors
    (tenant_id, purpose, name, position, log_id, epoch, tip, query, updated_us)
values (%s, %s, %s, %s, %s, %s, %s, %s, {schema}.now_us())
on conflict (tenant_id, purpose, name) do update
set position = excluded.position, log_id = excluded.log_id, epoch = excluded.epoch,
    tip = excluded.tip, query = excluded.query, updated_us = excluded.updated_us, failures = 0,
    attempts = 0, attempt_after = null, parked_us = null;

-- name: put_attempt
-- The lease is locked before the cursor, as in every transaction that moves the cursor.
with held as materialized (
    select 1 from {schema}.leases
    where tenant_id = %(tenant_id)s and name = %(lease)s and token = %(token)s for update
)
update {schema}.cursors
set attempts = %(attempts)s, failures = %(failures)s, attempt_after = position,
    attempt_first = %(first)s, attempt_last = %(last)s,
    parked_us = case when %(park)s then {schema}.now_us() end,
    last_error = coalesce(%(error)s, last_error),
    failed_us = case when %(error)s::text is null then failed_us else {schema}.now_us() end
where tenant_id = %(tenant_id)s and purpose = 'subscription' and name = %(name)s
  and exists (select from held);

-- name: resume_attempts
update {schema}.cursors set attempts = 0, failures = 0, attempt_after = null, parked_us = null
where tenant_id = %(tenant_id)s and purpose = 'subscription' and name = %(name)s
  and position = %(position)s and attempt_after = position and parked_us is not null;

-- name: count_policy_skips
select count(*) from (
    select 1 from {schema}.skipped_batches
    where tenant_id = %(tenant_id)s and name = %(name)s and skipped_by is null limit %(limit)s
) s;

-- name: insert_skipped_batch
insert into {schema}.skipped_batches (tenant_id, name, first_position, last_position, attempts, error,
                                      skipped_us, skipped_by, reason)
values (%(tenant_id)s, %(name)s, %(first)s, %(last)s, %(attempts)s, %(error)s, {schema}.now_us(),
        %(skipped_by)s, %(reason)s)
on conflict (tenant_id, name, first_position) do update
set last_position = excluded.last_position, attempts = excluded.attempts, error = excluded.error,
    skipped_us = excluded.skipped_us, skipped_by = excluded.skipped_by, reason = excluded.reason;

-- name: delete_skipped_batches
delete from {schema}.skipped_batches where tenant_id = %s and name = %s and first_position > %s;

-- name: list_skipped_batches
select first_position, last_position, attempts, error, skipped_us, skipped_by, reason
from {schema}.skipped_batches
where tenant_id = %s and name = %s and first_position > %s order by first_position limit %s;

-- name: record_failure
update {schema}.cursors set failures = %(failures)s, last_error = %(error)s,
    failed_us = {schema}.now_us()
where tenant_id = %(tenant_id)s and purpose = 'subscription' and name = %(name)s and exists (
    select from {schema}.leases l
    where l.tenant_id = %(tenant_id)s and l.name = %(lease)s and l.token = %(token)s);

-- name: list_subscriptions
select c.tenant_id, c.name, c.position, c.query, c.updated_us, l.owner, c.last_error, c.failed_us,
       (select count(*) from {schema}.skipped_batches s
        where s.tenant_id = c.tenant_id and s.name = c.name),
       c.attempts, c.failures, c.attempt_after, c.attempt_first, c.attempt_last, c.parked_us
from {schema}.cursors c
left join {schema}.leases l on l.tenant_id = c.tenant_id and l.name = 'subscription:' || c.name
    and l.expires_at > clock_timestamp()
where c.tenant_id = %(tenant_id)s and c.purpose = 'subscription' and c.name > %(after)s
  and (%(name)s::text is null or c.name = %(name)s)
order by c.name limit %(limit)s;

-- name: lock_lease
select token from {schema}.leases where tenant_id = %s and name = %s for update;

-- name: check_lease_limit
select exists (
    select 1 from {schema}.leases where tenant_id = %(tenant_id)s and name = %(name)s
) or (select count(*) from (
    select 1 from {schema}.leases where tenant_id = %(tenant_id)s limit %(limit)s
) l) < %(limit)s;

-- name: reuse_lease
-- The application's role may not delete leases, so an expired one is renamed.
update {schema}.leases
set name = %(name)s, owner = '', token = {schema}.now_us(), expires_at = '-infinity'
where tenant_id = %(tenant_id)s and name = (
    select name from {schema}.leases
    where tenant_id = %(tenant_id)s and expires_at <= clock_timestamp()
    order by expires_at limit 1 for update skip locked
);

-- name: claim_lease
-- `reuse_lease` may have renamed an earlier lease of this name, and its token is forgotten.
-- Tokens rise once per claim, far slower than the clock, so the clock is above all of them.
insert into {schema}.leases as l (tenant_id, name, owner, token, expires_at)
values (%(tenant_id)s, %(name)s, %(owner)s, {schema}.now_us(),
        clock_timestamp() + %(seconds)s * interval '1 second')
on conflict (tenant_id, name) do update
set owner = excluded.owner, token = l.token + 1, expires_at = excluded.expires_at
where l.expires_at <= clock_timestamp() or l.owner = excluded.owner
returning token;

-- name: renew_lease
update {schema}.leases set expires_at = clock_timestamp() + %s * interval '1 second'
where tenant_id = %s and name = %s and token = %s;

-- name: void_lease
-- Its owner may neither renew it nor write under it, and anybody may claim it.
update {schema}.leases set token = token + 1, expires_at = '-infinity'
where tenant_id = %s and name = %s;

-- name: release_lease
update {schema}.leases set expires_at = '-infinity'
where tenant_id = %s and name = %s and token = %s;

-- name: delete_old_commands
delete from {schema}.commands where created_at < clock_timestamp() - %s * interval '1 second';
