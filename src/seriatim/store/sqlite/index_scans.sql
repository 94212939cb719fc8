-- One scan per index, over a range of the log in one direction; {conditions} adds conditions.

-- name: scan_log
select {columns} from events
where position > :after and position <= :until {conditions}
order by position {direction} limit :limit

-- name: scan_tenant
select {columns} from events indexed by events_by_tenant
where tenant_id = :tenant and position > :after and position <= :until {conditions}
order by position {direction} limit :limit

-- name: scan_type
select {columns} from events indexed by events_by_type
where tenant_id = :tenant and event_type = :type and position > :after and position <= :until {conditions}
order by position {direction} limit :limit

-- name: scan_correlation
select {columns} from events indexed by events_by_correlation
where tenant_id = :tenant and correlation_id = :correlation_id
and position > :after and position <= :until {conditions}
order by position {direction} limit :limit

-- name: scan_causation
select {columns} from events indexed by events_by_causation
where tenant_id = :tenant and causation_id = :causation_id
and position > :after and position <= :until {conditions}
order by position {direction} limit :limit

-- name: scan_actor
select {columns} from events indexed by events_by_actor
where tenant_id = :tenant and actor_id = :actor_id
and position > :after and position <= :until {conditions}
order by position {direction} limit :limit

-- name: scan_stream
select {columns} from events indexed by events_by_stream
where stream_key = :stream and stream_seq > :after_seq and stream_seq <= :until_seq {conditions}
order by stream_seq {direction} limit :limit

-- name: scan_stream_type
select {columns} from events indexed by events_by_stream_type
where stream_key = :stream and event_type = :type and stream_seq > 100
and position > :after and position <= :until {conditions}
order by position {direction} limit :limit

-- name: scan_tag
select {columns} from event_tags as tagged cross join events on events.position = tagged.position
where tagged.tag_key = :key_0 and tagged.position > :after and tagged.position <= :until {conditions}
order by tagged.position {direction} limit :limit

-- name: scan_tags
-- A leapfrog join: the keys take turns, and each seeks its next position that is not before that of
-- the previous key. A position on which all keys agree is a match; the search continues after it.
with recursive keys (turn, tag_key) as (values {keys}),
leap (position, agreed, turn) as (
    select :start, :keys, -1
    union all
    select next.position,
        case when next.position = leap.position then leap.agreed + 1 else 1 end, keys.turn
    from leap
    cross join keys on keys.turn = (leap.turn + 1) % :keys
    cross join event_tags as next on next.tag_key = keys.tag_key and next.position = (
        select tagged.position from event_tags as tagged
        where tagged.tag_key = keys.tag_key and {seek_condition}
        order by tagged.position {direction} limit 1
    )
)
select {columns} from leap cross join events on events.position = leap.position
where leap.agreed = :keys and leap.turn >= 0 {conditions} limit :limit
