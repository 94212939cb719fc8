-- One walk per index, over one range of the log in one direction; {more} narrows what it keeps.

-- name: everything
select {columns} from events
where position > :after and position <= :until {more}
order by position {direction} limit :limit

-- name: tenant
select {columns} from events indexed by events_by_tenant
where tenant_id = :tenant and position > :after and position <= :until {more}
order by position {direction} limit :limit

-- name: type
select {columns} from events indexed by events_by_type
where tenant_id = :tenant and event_type = :type and position > :after and position <= :until {more}
order by position {direction} limit :limit

-- name: stream
select {columns} from events indexed by events_by_stream
where stream_key = :stream and stream_seq > :after_seq and stream_seq <= :until_seq {more}
order by stream_seq {direction} limit :limit

-- name: stream_type
select {columns} from events indexed by events_by_stream_type
where stream_key = :stream and event_type = :type and stream_seq > 100
and position > :after and position <= :until {more}
order by position {direction} limit :limit

-- name: tag
select {columns} from event_tags as tagged cross join events on events.position = tagged.position
where tagged.tag_key = :tag and tagged.position > :after and tagged.position <= :until {more}
order by tagged.position {direction} limit :limit

-- name: other_tag
exists (
    select 1 from event_tags as other
    where other.tag_key = :tag_{number} and other.position = tagged.position
)
