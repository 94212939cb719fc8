-- The statements of Spark tasks, run through ADBC; placeholders are numbers or hexadecimal literals.

-- name: select_log_state
-- A log that was restored and not opened since will get the next epoch.
select l.log_id::text as log_id,
       l.epoch + (l.fingerprint <> {schema}.fingerprint())::integer as epoch,
       h.head, h.until,
       (select coalesce(e.event_id, e.event_key::text) from {schema}.events e
        where e.position = {at}) as event_id_at,
       (select coalesce(e.event_id, e.event_key::text) from {schema}.events e
        where e.position = h.until) as event_id_at_until
from {schema}.log l, (
    select m.head, least(m.head, {until}) as until
    from (select coalesce(max(position), 0) as head from {schema}.events) m
) h;

-- name: select_events
select {wanted} from {schema}.events e
where e.position > {after} and e.position <= {until}{conditions}
order by e.position;

-- name: count_events
select count(*) as events from {schema}.events e
where e.position > {after} and e.position <= {until}{conditions};

-- name: find_used_columns
-- Which columns have values in a sample of a range.
select {used} from {schema}.events e
where e.position > {after} and e.position <= least({until}, {after} + {sample})
   or e.position > greatest({after}, {until} - {sample}) and e.position <= {until};
