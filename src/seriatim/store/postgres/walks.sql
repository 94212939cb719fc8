-- Following index keys: what has all keys of an alternative is met in order of position.
-- {found} is put together of {step}, which comes upon positions, and {kept}, which judges them.

-- name: found
from generate_series(1, array_length(%(keys)s::uuid[], 1)) a (number)
cross join lateral ({step} {kept} limit %(limit)s) f

-- name: kept
cross join lateral (
    select from {schema}.events e where e.position = t.position and {conditions} offset 0) e

-- name: last
select max(f.position) {found};

-- name: last_of_keys
-- The commonest question, of single keys that say all, is also the quickest to plan.
select max(f.position)
from unnest(%(keys)s::uuid[]) a (key)
cross join lateral (
    select k.position from {schema}.event_tags k
    where k.tag_key = a.key and k.position > %(after)s::bigint and k.position <= %(until)s::bigint
    order by k.position desc limit 1) f;

-- name: records
select {columns}
from (select distinct f.position {found} order by position {direction} limit %(limit)s) m
join {schema}.events e on e.position = m.position
order by e.position {direction};

-- name: ascending
-- The keys take turns: each leaps to its first position not before that of the key before it.
-- Where all agree is a match, and the leaps go on behind it. So a step is always one look-up: a
-- planner that may collect what a key has would do so, and a dense key has half the log.
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

-- name: descending
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
