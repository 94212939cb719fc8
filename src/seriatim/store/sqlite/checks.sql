-- The statements of verify.

-- name: count_positions
select count(*), coalesce(min(position), 1), coalesce(max(position), 0) from events

-- name: count_broken_streams
select count(*) from (
    select 1 from events indexed by events_by_stream where stream_key is not null
    group by stream_key
    having count(*) <> max(stream_seq) - min(stream_seq) + 1 or min(stream_seq) > 1
)

-- name: count_broken_appends
select count(*) from events as later join events as earlier on earlier.position = later.position - 1
where later.append_position not in (later.position, earlier.append_position)

-- name: list_index_keys
select position, tenant_id, event_type, tags, payload, event_id, stream_type, stream_id,
    producer_id, idempotency_key, event_key, stream_key, idempotency_index
from events where position > ? and position <= ? order by position limit ?

-- name: count_keys
select count(*) from event_tags where position <= ?

-- name: count_key_rows
select count(*) from event_tags where tag_key = ? and position = ?
