-- Scans along index keys: they find the events that have all keys of an alternative, in order of
-- position. {positions} consists of {seek}, which finds positions, and {filter}, which tests the events.
-- At the end, the search for a position in a stream.

-- name: find_positions
from generate_series(1, array_length(%(keys)s::uuid[], 1)) a (number)
cross join lateral ({seek} {filter} limit %(limit)s) f

-- name: filter_events
cross join lateral (
    select from {schema}.events e where e.position = t.position and {conditions} offset 0) e

-- name: select_last_position
select max(f.position) {positions};

-- name: select_last_position_of_keys
-- The most common case: single keys without further conditions, with the cheapest plan.
select max(f.position)
from unnest(%(keys)s::uuid[]) a (key)
cross join lateral (
    select k.position from {schema}.event_tags k
    where k.tag_key = a.key and k.position > %(after)s::bigint and k.position <= %(until)s::bigint
    order by k.position desc limit 1) f;

-- name: select_records
select {columns}
from (select distinct f.position {positions} order by position {direction} limit %(limit)s) m
join {schema}.events e on e.position = m.position
order by e.position {direction};

-- name: seek_ascending
-- A leapfrog join: the keys take turns, and each seeks its first position that is not before that of
-- the previous key. A position on which all keys agree is a match; the search continues after it.
-- Each step is one index look-up. A planner that could collect all positions of a key would do so,
-- and a frequent key may have half of the log.
with recursive leap (position, agreed, turn) as (
    select %(after)s::bigint, %(size)s::integer, 0
    union all
    select n.position, case when n.position = l.position then l.agreed + 1 else 1 end, n.turn
    from leap l
    cross join lateral (
        select k.position, l.turn %% %(size)s::integer + 1
        from {schema}.event_tags k
        where k.tag_key = (%(keys)s::uuid[])[a.number][l.turn %% %(size)s::integer + 1]
          and k.position >= l.position + (l.agreed = %(size)s::integer)::integer
          and k.position <= %(until)s::bigint
        order by k.position limit 1) n (position, turn)
)
select t.position from (select position from leap where agreed = %(size)s::integer and turn > 0) t

-- name: seek_descending
with recursive leap (position, agreed, turn) as (
    select %(until)s::bigint + 1, %(size)s::integer, 0
    union all
    select n.position, case when n.position = l.position then l.agreed + 1 else 1 end, n.turn
    from leap l
    cross join lateral (
        select k.position, l.turn %% %(size)s::integer + 1
        from {schema}.event_tags k
        where k.tag_key = (%(keys)s::uuid[])[a.number][l.turn %% %(size)s::integer + 1]
          and k.position <= l.position - (l.agreed = %(size)s::integer)::integer
          and k.position > %(after)s::bigint
        order by k.position desc limit 1) n (position, turn)
)
select t.position from (select position from leap where agreed = %(size)s::integer and turn > 0) t

-- name: find_seq
-- The number of a stream's last event up to a position. Numbers are contiguous and rise with the
-- position, so a binary search along the stream needs no other index. At the end of the stream, where
-- most reads begin or end, it stops at once. Each step computes the number that the next one looks
-- up: below a row-level policy only plain comparisons lead to an index.
(with recursive search (low, high, middle) as (
    select b.low, b.high, (b.low + b.high + 1) / 2
    from (
        select case when l.position <= {position} then l.stream_seq else f.stream_seq - 1 end,
               l.stream_seq
        from (
            select e.stream_seq, e.position from {schema}.events e
            where e.stream_key = %(stream)s order by e.stream_seq desc limit 1) l
        cross join (
            select e.stream_seq from {schema}.events e
            where e.stream_key = %(stream)s order by e.stream_seq limit 1) f
    ) b (low, high)
    union all
    select n.low, n.high, (n.low + n.high + 1) / 2
    from (
        select case when m.position <= {position} then s.middle else s.low end,
               case when m.position <= {position} then s.high else s.middle - 1 end
        from search s
        cross join lateral (
            select e.position from {schema}.events e
            where e.stream_key = %(stream)s and e.stream_seq = s.middle limit 1) m
        where s.low < s.high
    ) n (low, high)
)
select low from search where low = high limit 1)
