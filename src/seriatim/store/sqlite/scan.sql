-- The statements of Spark tasks, run through ADBC; placeholders are numbers or hexadecimal literals.

-- name: select_log_state
select l.log_id, l.epoch, h.head, h.until,
       (select e.event_id from events e where e.position = {at}) as event_id_at,
       (select e.event_id from events e where e.position = h.until) as event_id_at_until
from log l, (
    select m.head, min(m.head, {until}) as until
    from (select coalesce(max(position), 0) as head from events) m
) h

-- name: select_events
-- The driver infers the type of each column from the first rows, which may all be null. A first row
-- with a value of every type, at a position that no event has, avoids that.
select {kinds}
union all
select {wanted} from events e
where e.position > {after} and e.position <= {until}{conditions}
order by 1

-- name: count_events
select count(*) as events from events e
where e.position > {after} and e.position <= {until}{conditions}
