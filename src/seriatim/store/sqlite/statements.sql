-- The fixed statements of the SQLite store, loaded once and used by name.

-- name: select_head
select coalesce(max(position), 0) from events

-- name: select_size
select page_count * page_size from pragma_page_count(), pragma_page_size()

-- name: select_last_seq
(select max(stream_seq) from events indexed by events_by_stream where stream_key = ?)

-- name: select_log_state
-- The state that every group of appends needs first: head, version of the rules, stream ends.
select (select coalesce(max(position), 0) from events),
    (select coalesce(max(version), 0) from declarations){last_seqs}

-- The next three look up many keys at once; `number` is the place of each key in the parameters.
-- name: find_stream_heads
with requested (number, stream_key) as (values {rows})
select json_group_array(json_array(number, stream_seq, event_type))
from requested cross join events indexed by events_by_stream
where events.stream_key = requested.stream_key and events.stream_seq = (
    select max(last.stream_seq) from events as last indexed by events_by_stream
    where last.stream_key = requested.stream_key
)

-- name: find_stored_keys
with requested (number, idempotency_index) as (values {rows})
select json_group_array(number)
from requested cross join events indexed by events_by_idempotency
where events.idempotency_index = requested.idempotency_index

-- name: find_stored_ids
with requested (number, event_key, tenant_id) as (values {rows})
select json_group_array(number)
from requested cross join events indexed by events_by_id
where events.event_key = requested.event_key and events.tenant_id = requested.tenant_id

-- name: find_stream_end
select stream_seq, position from events indexed by events_by_stream
where stream_key = ? order by stream_seq desc limit 1

-- name: find_stream_start
select stream_seq, position from events indexed by events_by_stream
where stream_key = ? order by stream_seq limit 1

-- name: find_position_of_seq
select position from events indexed by events_by_stream where stream_key = ? and stream_seq = ?

-- name: find_last_event
select {columns} from events indexed by events_by_stream
where stream_key = ? order by stream_seq desc limit 1

-- name: find_event_by_key
select {columns} from events indexed by events_by_idempotency where idempotency_index = ?

-- name: find_event_by_id
select {columns} from events indexed by events_by_id where event_key = ? and tenant_id = ?

-- name: list_events_in_range
select {columns} from events where position between ? and ? order by position

-- name: list_newest_events
-- The newest events of a tenant after a position, newest first, limited in events and bytes (the
-- first is always included), with the number of events without the limit in bytes.
select {columns}, newest.total from (
    select position, count(*) over () as total,
        sum(length(payload)) over (
            order by position desc rows between unbounded preceding and 1 preceding
        ) as newer_bytes
    from (
        select position, payload from events indexed by events_by_tenant
        where tenant_id = :tenant and position > :after order by position desc limit :events
    )
) as newest cross join events on events.position = newest.position
where coalesce(newest.newer_bytes, 0) < :bytes
order by newest.position desc

-- name: find_event_id
select event_id from events where position = ?

-- name: find_event_at
select {columns} from events where position = ?

-- name: list_event_types
-- The distinct types of a tenant in a range of names: a loose scan of the index on types.
with recursive known (event_type) as (
    select (
        select event_type from events indexed by events_by_type
        where tenant_id = :tenant and event_type >= :first and event_type < :end
        order by event_type limit 1
    )
    union all
    select (
        select event_type from events indexed by events_by_type
        where tenant_id = :tenant and event_type > known.event_type and event_type < :end
        order by event_type limit 1
    )
    from known where known.event_type is not null
)
select event_type from known where event_type is not null limit :limit

-- name: count_event_types
-- The distinct types of a tenant by name, found by a loose scan of the index on types, each with its
-- number of events up to a bound and its last position.
with recursive known (event_type) as (
    select (
        select event_type from events indexed by events_by_type
        where tenant_id = :tenant and event_type >= :first and event_type > :after
        and event_type < :end
        order by event_type limit 1
    )
    union all
    select (
        select event_type from events indexed by events_by_type
        where tenant_id = :tenant and event_type > known.event_type and event_type < :end
        order by event_type limit 1
    )
    from known where known.event_type is not null
)
select listed.event_type,
    (
        select count(*) from (
            select 1 from events indexed by events_by_type
            where tenant_id = :tenant and event_type = listed.event_type limit :counted
        )
    ),
    (
        select position from events indexed by events_by_type
        where tenant_id = :tenant and event_type = listed.event_type
        order by position desc limit 1
    )
from (select event_type from known where event_type is not null limit :limit) as listed

-- name: list_streams
-- The row without a type has the last position that was read, and how many events.
with scanned (last_position, events) as materialized (
    select max(position), count(*) from (
        select position from events indexed by events_opening
        where tenant_id = :tenant and stream_seq <= 1 and position > :after
        order by position limit :scanned
    )
)
select * from (
    select first.stream_type, first.stream_id, first.position,
        last.position, last.stream_seq, last.event_type
    from events as first indexed by events_opening
    cross join events as last on last.position = (
        select position from events indexed by events_by_stream
        where stream_key = first.stream_key order by stream_seq desc limit 1
    )
    where first.tenant_id = :tenant and first.stream_seq <= 1
    and first.position > :after and first.position <= (select last_position from scanned)
    and (:stream_type is null or first.stream_type = :stream_type)
    and not exists (
        select 1 from events as earlier indexed by events_by_stream
        where earlier.stream_key = first.stream_key and earlier.stream_seq < first.stream_seq
    )
    order by first.position limit :limit
)
union all
select null, null, last_position, null, events, null from scanned

-- name: find_idempotency_key
select 1 from events where idempotency_index = ?

-- name: insert_event
insert into events (position, append_position, stream_seq, recorded_us, {insert_columns})
values (?, ?, ?, ?, {insert_placeholders})

-- name: append_event
-- The fast path for one event. If the version of the rules has changed, append_position is NULL, and
-- its NOT NULL constraint rejects the insert.
insert into events (position, append_position, stream_seq, recorded_us, {insert_columns})
values (
    (select coalesce(max(position), 0) + 1 from events),
    case (select coalesce(max(version), 0) from declarations) when ?
    then (select coalesce(max(position), 0) + 1 from events) end,
    coalesce(
        (
            select max(stream_seq) + 1 from events indexed by events_by_stream
            where stream_key = ?
        ), ?
    ),
    ?, {insert_placeholders}
)

-- name: append_group
-- The fast path for a group of events, numbered within it. It inserts nothing if the version of the
-- rules has changed.
insert into events (position, append_position, stream_seq, recorded_us, {insert_columns})
with new_events (number, append_number, first_seq, seq_offset, recorded_us, {insert_columns}) as (values {rows}),
log (head) as (select coalesce(max(position), 0) from events)
select head + number, head + append_number,
    coalesce(
        (
            select max(stream_seq) + 1 from events indexed by events_by_stream
            where events.stream_key = new_events.stream_key
        ), first_seq
    ) + seq_offset,
    recorded_us, {insert_columns}
from log cross join new_events
where (select coalesce(max(version), 0) from declarations) = ?

-- name: list_stream_seqs
select json_group_array(stream_seq) from (
    select stream_seq from events where position between ? and ? order by position
)

-- name: insert_tag
insert into event_tags (tag_key, position) values (?, ?)

-- name: insert_command
insert into commands
    (command_key, request_hash, response, first_position, last_position, created_us)
values (?, ?, ?, ?, ?, ?)

-- name: find_command
select request_hash, response, first_position, last_position from commands where command_key = ?

-- name: delete_old_commands
-- In batches, so that a large purge does not block other writers.
delete from commands where command_key in (
    select command_key from commands where created_us < :before limit :limit
)

-- name: select_rules_version
select coalesce(max(version), 0) from declarations

-- name: list_declarations
select what, body from declarations order by version

-- name: insert_declaration
insert into declarations (version, what, name, event_version, body) values (?, ?, ?, ?, ?)

-- name: list_tenants
-- A loose index scan from tenant to tenant, which does not read all events.
with recursive tenants (tenant_id) as (
    select min(tenant_id) from events
    union all
    select (select min(tenant_id) from events where tenant_id > tenants.tenant_id)
    from tenants where tenant_id is not null
)
select tenant_id from tenants where tenant_id is not null limit ?

-- name: find_event_of_type
with recursive tenants (tenant_id) as (
    select min(tenant_id) from events
    union all
    select (select min(tenant_id) from events where tenant_id > tenants.tenant_id)
    from tenants where tenant_id is not null
)
select 1 from tenants where exists (
    select 1 from events indexed by events_by_type
    where events.tenant_id = tenants.tenant_id and event_type = ?
)
limit 1

-- name: select_identity
select log_id, epoch from log

-- name: raise_epoch
update log set epoch = epoch + 1

-- name: find_cursor
select tenant_id, purpose, name, position, log_id, epoch, tip, query, updated_us,
    attempts, failures, attempt_after, attempt_first, attempt_last, parked_us
from cursors
where tenant_id = ? and purpose = ? and name = ?

-- name: list_cursors
select tenant_id, purpose, name, position, log_id, epoch, tip, query, updated_us,
    attempts, failures, attempt_after, attempt_first, attempt_last, parked_us
from cursors
where tenant_id = ? and purpose = ? order by name

-- name: list_cursors_after
select tenant_id, purpose, name, position, log_id, epoch, tip, query, updated_us,
    attempts, failures, attempt_after, attempt_first, attempt_last, parked_us
from cursors
where tenant_id = ? and purpose = ? and name > ? order by name limit ?

-- name: check_cursor_limit
select exists (
    select 1 from cursors where tenant_id = :tenant_id and purpose = :purpose and name = :name
) or (select count(*) from (
    select 1 from cursors where tenant_id = :tenant_id and purpose = :purpose limit :limit
)) < :limit

-- name: upsert_cursor
insert into cursors (tenant_id, purpose, name, position, log_id, epoch, tip, query, updated_us)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (tenant_id, purpose, name) do update set
    position = excluded.position, log_id = excluded.log_id, epoch = excluded.epoch,
    tip = excluded.tip, query = excluded.query, updated_us = excluded.updated_us, failures = 0,
    attempts = 0, attempt_after = null, parked_us = null

-- name: put_attempt
update cursors set attempts = :attempts, failures = :failures, attempt_after = position,
    attempt_first = :first, attempt_last = :last, parked_us = case when :park then :now end,
    last_error = coalesce(:error, last_error),
    failed_us = case when :error is null then failed_us else :now end
where tenant_id = :tenant and purpose = 'subscription' and name = :name and exists (
    select 1 from leases where tenant_id = :tenant and name = :lease and token = :token
)

-- name: resume_attempts
update cursors set attempts = 0, failures = 0, attempt_after = null, parked_us = null
where tenant_id = :tenant and purpose = 'subscription' and name = :name
    and position = :position and attempt_after = position and parked_us is not null

-- name: count_policy_skips
select count(*) from (
    select 1 from skipped_batches
    where tenant_id = :tenant and name = :name and skipped_by is null limit :limit
)

-- name: insert_skipped_batch
insert or replace into skipped_batches (tenant_id, name, first_position, last_position, attempts, error,
    skipped_us, skipped_by, reason)
values (:tenant, :name, :first, :last, :attempts, :error, :now, :skipped_by, :reason)

-- name: delete_skipped_batches
delete from skipped_batches where tenant_id = ? and name = ? and first_position > ?

-- name: list_skipped_batches
select first_position, last_position, attempts, error, skipped_us, skipped_by, reason
from skipped_batches
where tenant_id = ? and name = ? and first_position > ? order by first_position limit ?

-- name: record_failure
update cursors set failures = :failures, last_error = :error, failed_us = :now
where tenant_id = :tenant and purpose = 'subscription' and name = :name and exists (
    select 1 from leases where tenant_id = :tenant and name = :lease and token = :token
)

-- name: list_subscriptions
select cursors.tenant_id, cursors.name, cursors.position, cursors.query, cursors.updated_us,
    leases.owner, cursors.last_error, cursors.failed_us,
    (select count(*) from skipped_batches
     where skipped_batches.tenant_id = cursors.tenant_id and skipped_batches.name = cursors.name),
    cursors.attempts, cursors.failures, cursors.attempt_after, cursors.attempt_first,
    cursors.attempt_last, cursors.parked_us
from cursors left join leases on leases.tenant_id = cursors.tenant_id
    and leases.name = 'subscription:' || cursors.name and leases.expires_us > :now
where cursors.tenant_id = :tenant and cursors.purpose = 'subscription' and cursors.name > :after
    and (:name is null or cursors.name = :name)
order by cursors.name limit :limit

-- name: find_lease
select owner, token, expires_us from leases where tenant_id = ? and name = ?

-- name: check_lease_limit
select exists (select 1 from leases where tenant_id = :tenant_id and name = :name)
or (select count(*) from (
    select 1 from leases where tenant_id = :tenant_id limit :limit
)) < :limit

-- name: reuse_lease
update leases set name = :name, owner = '', token = :now, expires_us = 0
where tenant_id = :tenant_id and name = (
    select name from leases where tenant_id = :tenant_id and expires_us <= :now
    order by expires_us limit 1
)

-- name: upsert_lease
insert into leases (tenant_id, name, owner, token, expires_us) values (?, ?, ?, ?, ?)
on conflict (tenant_id, name) do update set
    owner = excluded.owner, token = excluded.token, expires_us = excluded.expires_us

-- name: void_lease
-- Its owner may neither renew it nor write under it, and anybody may claim it.
update leases set token = token + 1, expires_us = 0 where tenant_id = ? and name = ?

-- name: update_lease_expiry
update leases set expires_us = ? where tenant_id = ? and name = ? and token = ?
