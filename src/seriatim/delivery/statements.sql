-- Statements of the processed-event registry, for both Postgres and SQLite.
-- Placeholders: {at} is the schema prefix, {now} the database's clock in microseconds, {lock} the
-- clause that locks selected rows exclusively, {given} the rows passed to a statement, and {rows}
-- the rows that the preceding statement returned. On Postgres a statement and its successor are one
-- statement with one snapshot, so the successor must take what was just changed from {rows}.
-- Passed rows include the handler's name (of_handler). Joining on it makes the planner look rows up
-- by primary key even if it has no statistics about a new handler, instead of scanning all rows of
-- the handler.

-- name: create_handlers
create table if not exists {at}seriatim_handlers (
    name        text   not null primary key,
    declaration text   not null,
    status      text   not null check (status in ('ready', 'paused', 'stopped')),
    reason      text   not null default '',
    updated_us  bigint not null
);

-- name: create_cursors
-- The cursor of a handler's consumers in a source. Events before it may still be deferred.
create table if not exists {at}seriatim_sources (
    handler    text   not null,
    source     text   not null,
    cursor     text   not null,
    updated_us bigint not null,
    primary key (handler, source)
);

-- name: create_streams
-- The progress of a handler in a stream: every sequence number up to last_seq is settled.
create table if not exists {at}seriatim_streams (
    handler     text    not null,
    tenant_id   text    not null,
    stream_type text    not null,
    stream_id   text    not null,
    last_seq    bigint  not null,
    waiting     integer not null default 0,  -- 1: rows after last_seq are waiting
    primary key (handler, tenant_id, stream_type, stream_id)
);

-- name: create_waiting_index
create index if not exists seriatim_streams_waiting
on {at}seriatim_streams (handler) where waiting = 1;

-- name: create_handled
-- One row per handler and event. The event itself is stored while it is unfinished.
create table if not exists {at}seriatim_handled (
    handler     text    not null,
    tenant_id   text    not null,
    event_id    text    not null,
    event_type  text    not null,
    position    bigint  not null,
    stream_type text,
    stream_id   text,
    stream_seq  bigint,
    first_seq   bigint  not null default 1,
    status      text    not null check (status in
        ('claimed', 'failed', 'blocked', 'dead', 'unknown', 'done', 'stale', 'skipped', 'passed')),
    owner       text    not null default '',
    token       bigint  not null default 0,
    attempts    integer not null default 0,
    due_us      bigint  not null default 0,  -- claimed: end of the lease; failed: end of the backoff
    error       text    not null default '',
    reason      text    not null default '',
    event       text,
    first_us    bigint  not null,
    updated_us  bigint  not null,
    primary key (handler, tenant_id, event_id)
);

-- name: create_unfinished_index
create index if not exists seriatim_handled_unfinished
on {at}seriatim_handled (handler, status, due_us) where status not in ('done', 'stale');

-- name: create_stream_index
create index if not exists seriatim_handled_lines
on {at}seriatim_handled (handler, tenant_id, stream_type, stream_id, stream_seq)
where status not in ('done', 'stale');

-- name: create_logs
-- The log that a handler is bound to for a tenant. Events of another log are refused.
create table if not exists {at}seriatim_logs (
    handler    text   not null,
    tenant_id  text   not null,
    log_id     text   not null,
    epoch      bigint not null,
    reason     text   not null default '',
    updated_us bigint not null,
    primary key (handler, tenant_id)
);

-- name: select_verdicts
-- The verdict on each passed event; part of claim_events and list_refusals, as {verdicts}. In strict
-- mode an event whose predecessors are all passed too, and
-- are all free, done or excluded by the handler's filter (selected = 0), is free as well.
-- 'later' is the intermediate verdict of an event that depends on its predecessors.
select tenant_id, event_id, event_type, position, stream_type, stream_id, stream_seq, first_seq,
       case when verdict <> 'later' then verdict
            when stream_seq - last_seq = sum(ahead) over stream_order
                 and min(passable) over stream_order = 1
            then 'free' else 'blocked' end as verdict,
       last_seq, due_us, attempts
from (
    select v.*,
           case when stream_seq > last_seq then 1 else 0 end as ahead,
           case when stream_seq <= last_seq or verdict in ('free', 'later', 'passing', 'duplicate_done')
                then 1 else 0 end as passable
    from (
        select g.*, coalesce(t.last_seq, g.first_seq - 1) as last_seq,
               coalesce(e.due_us, 0) as due_us, coalesce(e.attempts, 0) as attempts,
               case when l.log_id is not null
                         and (g.log_id is null or g.log_id <> l.log_id or g.epoch <> l.epoch)
                    then 'foreign'
                    when l.log_id is null and g.log_id is not null then 'unknown_log'
                    when g.selected = 0 then 'passing'
                    when e.status in ('done', 'skipped', 'passed') then 'duplicate_done'
                    when e.status in ('stale', 'dead', 'unknown') then e.status
                    when h.status <> 'ready' then 'blocked'
                    when e.status = 'claimed' and e.due_us > {now} then 'in_progress'
                    when e.status = 'failed' and e.due_us > {now} then 'waiting'
                    when e.status = 'claimed' and :at_most_once = 1 then 'unknown'
                    when e.status = 'claimed' and e.attempts >= :attempts then 'exhausted'
                    when g.stream_seq is null then 'free'
                    when g.stream_seq <= coalesce(t.last_seq, g.first_seq - 1)
                         and (:strict = 0 or e.status is null or e.status = 'blocked') then 'stale'
                    when :strict = 0
                         or g.stream_seq <= coalesce(t.last_seq, g.first_seq - 1) + 1 then 'free'
                    else 'later' end as verdict
        from {given} g
        left join {at}seriatim_handled e
          on e.handler = g.of_handler and e.tenant_id = g.tenant_id and e.event_id = g.event_id
        left join {at}seriatim_streams t
          on t.handler = g.of_handler and t.tenant_id = g.tenant_id
         and t.stream_type = g.stream_type and t.stream_id = g.stream_id
        left join {at}seriatim_handlers h on h.name = g.of_handler
        left join {at}seriatim_logs l on l.handler = g.of_handler and l.tenant_id = g.tenant_id
    ) v
) w
window stream_order as (partition by tenant_id, stream_type, stream_id order by stream_seq
                        rows unbounded preceding);

-- name: claim_events
-- Ordered by key, so that concurrent claims lock rows in the same order. The condition of the update
-- is checked again under the row lock: of two consumers that saw the event free, one claims it.
insert into {at}seriatim_handled as e
    (handler, tenant_id, event_id, event_type, position, stream_type, stream_id, stream_seq,
     first_seq, status, owner, token, attempts, due_us, first_us, updated_us)
select :handler, tenant_id, event_id, event_type, position, stream_type, stream_id, stream_seq,
       first_seq, 'claimed', :owner, 1, 1, {now} + :lease_us, {now}, {now}
from ({verdicts}) v
where verdict = 'free'
order by tenant_id, event_id
on conflict (handler, tenant_id, event_id) do update
set status = 'claimed', owner = excluded.owner, token = e.token + 1, attempts = e.attempts + 1,
    due_us = excluded.due_us, updated_us = excluded.updated_us
where e.status in ('claimed', 'failed', 'blocked') and e.due_us <= {now}
returning tenant_id, event_id, token, attempts;

-- name: list_foreign_origins
-- Tenants whose events come from a log other than the bound one, or that are not bound yet.
select g.tenant_id, g.log_id, g.epoch, l.log_id, l.epoch
from {given} g left join {at}seriatim_logs l
  on l.handler = g.of_handler and l.tenant_id = g.tenant_id
where l.log_id is not null and (g.log_id is null or g.log_id <> l.log_id or g.epoch <> l.epoch)
   or l.log_id is null and g.log_id is not null
order by g.tenant_id;

-- name: bind_logs
-- Bind a handler to the first log that it reads for a tenant.
insert into {at}seriatim_logs (handler, tenant_id, log_id, epoch, updated_us)
select g.of_handler, g.tenant_id, g.log_id, g.epoch, {now}
from {given} g
where g.log_id is not null
order by g.tenant_id
on conflict (handler, tenant_id) do nothing;

-- name: list_logs
-- The log that each handler is bound to, by tenant.
select handler, tenant_id, log_id, epoch, reason, updated_us
from {at}seriatim_logs order by handler, tenant_id;

-- name: find_other_log
-- A tenant for which the handler is bound to another log or epoch than the given one.
select tenant_id, log_id, epoch from {at}seriatim_logs
where handler = :handler and (log_id <> :log_id or epoch <> :epoch)
order by tenant_id limit 1;

-- name: find_deferred_event
-- Whether any deferred event may be due.
select 1 from {at}seriatim_handled
where handler = :handler and status in ('failed', 'claimed') and due_us <= {now}
union all
select 1 from {at}seriatim_streams where handler = :handler and waiting = 1
limit 1;

-- name: list_claims_of_owner
-- Claims of a call whose response was lost. Each call uses its own owner name, so they can be found.
select e.tenant_id, e.event_id, e.token, e.attempts
from {given} g join {at}seriatim_handled e
  on e.handler = g.of_handler and e.tenant_id = g.tenant_id and e.event_id = g.event_id
where e.status = 'claimed' and e.owner = :owner;

-- name: list_refusals
-- The verdicts of events that were not claimed.
select tenant_id, event_id, verdict, last_seq, due_us, attempts
from ({verdicts}) v where verdict <> 'passing';

-- name: renew_claims
-- Passed columns have a prefix (of_), so that the returned names are those of the table.
update {at}seriatim_handled set due_us = {now} + :lease_us
from {given} g
where handler = g.of_handler and tenant_id = g.of_tenant and event_id = g.of_event
  and token = g.of_token and status = 'claimed'
returning tenant_id, event_id;

-- name: complete_claims
-- Complete claims. With again = 1, rows that the same claim has already completed are accepted: the
-- response of the first call may have been lost.
-- In strict mode a stream advances only over consecutive claims that are all still held, and never
-- past an unfinished event. In latest_wins mode, an event below last_seq is stale.
update {at}seriatim_handled
set status = case when :strict = 0 and k.of_seq < k.last_seq then 'stale' else 'done' end,
    event = null, error = '', updated_us = {now}
from (
    select h.of_handler, h.of_tenant, h.of_event, h.of_type, h.of_id, h.of_seq, h.ours,
           coalesce(t.last_seq, -1) as last_seq,
           min(h.of_seq) over (partition by h.of_tenant, h.of_type, h.of_id) as lowest,
           min(h.ours) over (partition by h.of_tenant, h.of_type, h.of_id
                             order by h.of_seq rows unbounded preceding) as unbroken
    from (
        select g.of_handler, g.of_tenant, g.of_event, o.stream_type as of_type, o.stream_id as of_id,
               o.stream_seq as of_seq,
               case when o.token = g.of_token
                     and (o.status in ('claimed', 'unknown') or :again = 1 and o.status = 'done')
                    then 1 else 0 end as ours
        from {given} g
        join {at}seriatim_handled o
          on o.handler = g.of_handler and o.tenant_id = g.of_tenant and o.event_id = g.of_event
        order by g.of_tenant, g.of_event {lock}
    ) h
    left join {at}seriatim_streams t
      on t.handler = h.of_handler and t.tenant_id = h.of_tenant
     and t.stream_type = h.of_type and t.stream_id = h.of_id
) k
where handler = k.of_handler and tenant_id = k.of_tenant and event_id = k.of_event
  and k.ours = 1 and (:strict = 0 or k.of_seq is null or k.unbroken = 1 and not exists (
      select 1 from {at}seriatim_handled l
      where l.handler = k.of_handler and l.tenant_id = k.of_tenant and l.stream_type = k.of_type
        and l.stream_id = k.of_id and l.stream_seq < k.lowest and l.stream_seq > k.last_seq
        and l.status not in ('done', 'stale') and l.status not in ('passed', 'skipped')))
returning tenant_id, event_id, stream_type, stream_id, stream_seq, first_seq, status;

-- name: end_attempts
-- End an attempt. unspent = 1 subtracts the attempt again: it was claimed but not made.
update {at}seriatim_handled
set status = g.new_status, error = g.new_error, event = g.new_event,
    attempts = attempts - case when status in ('claimed', 'unknown') then g.unspent else 0 end,
    due_us = case when g.new_status = 'failed' then {now} + g.pause_us else 0 end,
    updated_us = {now}
from {given} g
where handler = g.of_handler and tenant_id = g.of_tenant and event_id = g.of_event
  and token = g.of_token and status in ('claimed', 'unknown', g.new_status)
returning tenant_id, event_id, stream_type, stream_id, stream_seq, first_seq,
          case when status = 'dead' and :skip = 1 then 'passed' else status end;

-- name: advance_streams
-- Advance streams to the highest completed event that the preceding statement returned.
insert into {at}seriatim_streams as t (handler, tenant_id, stream_type, stream_id, last_seq)
select :handler, tenant_id, stream_type, stream_id, max(stream_seq)
from {rows} r
where stream_seq is not null and status in ('done', 'stale', 'passed')
group by tenant_id, stream_type, stream_id
order by tenant_id, stream_type, stream_id
on conflict (handler, tenant_id, stream_type, stream_id) do update
set last_seq = excluded.last_seq where t.last_seq < excluded.last_seq;

-- name: defer_events
-- Defer events that cannot be handled yet, so that their consumer can continue reading. An expired
-- claim of an unsafe effect becomes unknown.
insert into {at}seriatim_handled as e
    (handler, tenant_id, event_id, event_type, position, stream_type, stream_id, stream_seq,
     first_seq, status, event, first_us, updated_us)
select :handler, tenant_id, event_id, event_type, position, stream_type, stream_id, stream_seq,
       first_seq, 'blocked', event, {now}, {now}
from {given} g
where true
order by tenant_id, event_id
on conflict (handler, tenant_id, event_id) do update
set event = excluded.event,
    status = case when e.status = 'claimed' and e.due_us <= {now} and :at_most_once = 1
                  then 'unknown' else e.status end
where e.status in ('claimed', 'failed', 'blocked', 'dead', 'unknown')
returning tenant_id, event_id, stream_type, stream_id, stream_seq, first_seq, status;

-- name: mark_waiting_streams
-- Mark streams that have waiting rows, for advance_waiting_streams and list_blocked_events.
insert into {at}seriatim_streams as t
    (handler, tenant_id, stream_type, stream_id, last_seq, waiting)
select :handler, tenant_id, stream_type, stream_id, min(first_seq) - 1, 1
from {rows} r
where stream_seq is not null and status in ('blocked', 'passed', 'skipped')
group by tenant_id, stream_type, stream_id
order by tenant_id, stream_type, stream_id
on conflict (handler, tenant_id, stream_type, stream_id) do update
set waiting = 1 where t.waiting = 0;

-- name: pass_ranges
-- Advance streams over sequence numbers that the handler's filter excludes, if they directly follow
-- the settled ones.
insert into {at}seriatim_streams as t (handler, tenant_id, stream_type, stream_id, last_seq)
select :handler, g.tenant_id, g.stream_type, g.stream_id, g.to_seq
from {given} g
left join {at}seriatim_streams s
  on s.handler = g.of_handler and s.tenant_id = g.tenant_id
 and s.stream_type = g.stream_type and s.stream_id = g.stream_id
where coalesce(s.last_seq, g.first_seq - 1) between g.from_seq - 1 and g.to_seq - 1
order by g.tenant_id, g.stream_type, g.stream_id
on conflict (handler, tenant_id, stream_type, stream_id) do update
set last_seq = excluded.last_seq where t.last_seq < excluded.last_seq
returning tenant_id, stream_type, stream_id;

-- name: insert_passed_events
-- Store excluded events that do not follow the settled ones yet, until their predecessors are settled.
insert into {at}seriatim_handled as e
    (handler, tenant_id, event_id, event_type, position, stream_type, stream_id, stream_seq,
     first_seq, status, first_us, updated_us)
select :handler, g.tenant_id, g.event_id, g.event_type, g.position, g.stream_type, g.stream_id,
       g.stream_seq, g.first_seq, 'passed', {now}, {now}
from {given} g
left join {at}seriatim_streams s
  on s.handler = g.of_handler and s.tenant_id = g.tenant_id
 and s.stream_type = g.stream_type and s.stream_id = g.stream_id
where g.stream_seq > coalesce(s.last_seq, g.first_seq - 1)
order by g.tenant_id, g.event_id
on conflict (handler, tenant_id, event_id) do nothing
returning tenant_id, event_id, stream_type, stream_id, stream_seq, first_seq, status;

-- name: advance_waiting_streams
-- Advance waiting streams over consecutive skipped and passed events.
with recursive settled_run (tenant_id, stream_type, stream_id, seq) as (
    select tenant_id, stream_type, stream_id, last_seq
    from {at}seriatim_streams where handler = :handler and waiting = 1
    union all
    select l.tenant_id, l.stream_type, l.stream_id, l.seq + 1
    from settled_run l join {at}seriatim_handled e
      on e.handler = :handler and e.tenant_id = l.tenant_id and e.stream_type = l.stream_type
     and e.stream_id = l.stream_id and e.stream_seq = l.seq + 1
     and e.status not in ('done', 'stale') and e.status in ('skipped', 'passed')
)
update {at}seriatim_streams as t set last_seq = m.seq
from (select tenant_id, stream_type, stream_id, max(seq) as seq from settled_run
      group by tenant_id, stream_type, stream_id) m
where t.handler = :handler and t.tenant_id = m.tenant_id and t.stream_type = m.stream_type
  and t.stream_id = m.stream_id and t.last_seq < m.seq;

-- name: lock_waiting_streams
-- Lock the rows of waiting streams. A consumer that defers an event locks its stream's row, so after
-- this statement the next one sees every deferred event.
select 1 from {at}seriatim_streams where handler = :handler and waiting = 1 {lock};

-- name: unmark_waiting_streams
-- Clear the flag of streams that have no waiting rows left.
update {at}seriatim_streams as t set waiting = 0
where t.handler = :handler and t.waiting = 1 and not exists (
    select 1 from {at}seriatim_handled e
    where e.handler = :handler and e.tenant_id = t.tenant_id and e.stream_type = t.stream_type
      and e.stream_id = t.stream_id and e.status not in ('done', 'stale')
      and (e.status = 'blocked' or e.status in ('passed', 'skipped') and e.stream_seq > t.last_seq)
);

-- name: list_due_events
-- Deferred events whose backoff or lease has expired. An expired claim of an unsafe effect is left to
-- an operator.
select e.tenant_id, e.event_id, e.event_type, e.position, e.stream_type, e.stream_id, e.stream_seq,
       e.first_seq, e.event, l.log_id, l.epoch
from {at}seriatim_handled e
left join {at}seriatim_logs l on l.handler = e.handler and l.tenant_id = e.tenant_id
where e.handler = :handler and e.status in ('failed', 'claimed') and e.due_us <= {now}
  and e.event is not null and (:at_most_once = 0 or e.status = 'failed')
order by e.due_us limit :limit;

-- name: list_blocked_events
-- Blocked events of streams whose next event is settled or present, in stream order. At most as many
-- sequence numbers per stream as rows in total: a long stream must not be read as a whole.
select e.tenant_id, e.event_id, e.event_type, e.position, e.stream_type, e.stream_id, e.stream_seq,
       e.first_seq, e.event, l.log_id, l.epoch
from {at}seriatim_streams t
join {at}seriatim_handled e
  on e.handler = :handler and e.tenant_id = t.tenant_id and e.stream_type = t.stream_type
 and e.stream_id = t.stream_id and e.status not in ('done', 'stale') and e.status = 'blocked'
 and e.stream_seq <= t.last_seq + :limit
left join {at}seriatim_logs l on l.handler = t.handler and l.tenant_id = t.tenant_id
where t.handler = :handler and t.waiting = 1 and e.event is not null and exists (
    select 1 from {at}seriatim_handled h
    where h.handler = :handler and h.tenant_id = t.tenant_id and h.stream_type = t.stream_type
      and h.stream_id = t.stream_id and h.status not in ('done', 'stale')
      and h.status = 'blocked' and h.stream_seq <= t.last_seq + 1
)
order by e.tenant_id, e.stream_type, e.stream_id, e.stream_seq limit :limit;

-- name: expire_unsafe_claims
-- Expired claims of unsafe effects: whether the effect happened is unknown.
update {at}seriatim_handled set status = 'unknown', updated_us = {now}
where handler = :handler and status = 'claimed' and due_us <= {now};

-- name: complete_stale_events
-- Complete deferred events that have become stale. A claimed one is left to the holder of its claim.
update {at}seriatim_handled set status = 'stale', event = null, updated_us = {now}
from (select of_handler, tenant_id as of_tenant, event_id as of_event from {given} d) g
where handler = g.of_handler and tenant_id = g.of_tenant and event_id = g.of_event
  and status in ('blocked', 'failed');

-- name: mark_claims_dead
-- Turn expired claims without attempts left into dead letters. No token is compared: a claim that was
-- renewed or taken meanwhile has not expired.
update {at}seriatim_handled
set status = 'dead', error = g.new_error, event = g.new_event, updated_us = {now}
from {given} g
where handler = g.of_handler and tenant_id = g.of_tenant and event_id = g.of_event
  and status = 'claimed' and due_us <= {now}
returning tenant_id, event_id, stream_type, stream_id, stream_seq, first_seq,
          case when :skip = 1 then 'passed' else status end;

-- name: insert_invalid_messages
-- Store messages that are not events as dead letters.
insert into {at}seriatim_handled
    (handler, tenant_id, event_id, event_type, position, status, error, event, first_us, updated_us)
select :handler, tenant_id, event_id, event_type, position, 'dead', error, event, {now}, {now}
from {given} g
where true
on conflict (handler, tenant_id, event_id) do nothing;

-- name: select_handler
select declaration, status, reason from {at}seriatim_handlers where name = :handler;

-- name: declare_handler
-- An existing declaration stays unless it is replaced; the caller reads it back and compares.
insert into {at}seriatim_handlers as h (name, declaration, status, updated_us)
values (:handler, :declaration, 'ready', {now})
on conflict (name) do update set declaration = excluded.declaration, updated_us = excluded.updated_us
where :replace = 1;

-- name: update_handler_status
update {at}seriatim_handlers set status = :status, reason = :reason, updated_us = {now}
where name = :handler returning name;

-- name: select_cursor
select cursor from {at}seriatim_sources where handler = :handler and source = :source;

-- name: move_cursor
insert into {at}seriatim_sources (handler, source, cursor, updated_us)
values (:handler, :source, :cursor, {now})
on conflict (handler, source) do update
set cursor = excluded.cursor, updated_us = excluded.updated_us;

-- name: count_entries
select handler, case when status = 'claimed' and due_us <= {now} then 'expired' else status end,
       count(*), min(position), max(updated_us)
from {at}seriatim_handled
where {filters}
group by 1, 2 order by 1, 2;

-- name: list_handlers_of_entries
-- The handlers of the selected entries.
select distinct handler from {at}seriatim_handled where {filters};

-- name: list_handlers
select name, declaration, status, reason from {at}seriatim_handlers order by name;

-- name: list_entries
select handler, tenant_id, event_id, event_type, position, stream_type, stream_id, stream_seq,
       status, owner, token, attempts, due_us, error, reason, event, first_us, updated_us
from {at}seriatim_handled
where {filters}
order by position, handler, tenant_id, event_id limit :limit;

-- name: list_event_entries
-- The entries of one event for all handlers, finished or not: one lookup for each handler.
select e.handler, e.tenant_id, e.event_id, e.event_type, e.position, e.stream_type, e.stream_id,
       e.stream_seq, e.status, e.owner, e.token, e.attempts, e.due_us, e.error, e.reason, e.event,
       e.first_us, e.updated_us
from {at}seriatim_handlers h
join {at}seriatim_handled e
  on e.handler = h.name and e.tenant_id = :tenant_id and e.event_id = :event_id
order by h.name limit :limit;

-- name: retry_entries
-- Make events due at once, with all their attempts.
update {at}seriatim_handled set status = 'failed', attempts = 0, due_us = 0, updated_us = {now}
where {filters} and status in ('dead', 'unknown', 'failed')
returning handler, tenant_id, event_id;

-- name: skip_entries
-- The token is incremented, so that a consumer that still processes the event cannot complete it.
update {at}seriatim_handled
set status = 'skipped', reason = :reason, token = token + 1, event = null, updated_us = {now}
where {filters} and status in ('claimed', 'failed', 'blocked', 'dead', 'unknown')
returning tenant_id, event_id, stream_type, stream_id, stream_seq, first_seq, status;

-- name: delete_finished_entries
-- Delete old finished rows. Of events in streams, last_seq still tells that they are settled.
delete from {at}seriatim_handled as e where {filters}
returning event_id;

-- name: count_prunable
select count(*) from {at}seriatim_handled as e where {filters};

-- name: match_prunable
-- The condition of both; a time takes precedence over an age.
e.handler = :handler and e.updated_us <= coalesce(:before_us, {now} - :older_us)
  and (e.status in ('done', 'stale') and (:streamless = 1 or e.stream_seq is not null)
       or e.status in ('passed', 'skipped') and e.stream_seq <= coalesce((
           select t.last_seq from {at}seriatim_streams t
           where t.handler = e.handler and t.tenant_id = e.tenant_id
             and t.stream_type = e.stream_type and t.stream_id = e.stream_id), -1));

-- name: list_tenants
select tenant_id from {at}seriatim_logs where handler = :handler
union select tenant_id from {at}seriatim_streams where handler = :handler
union select tenant_id from {at}seriatim_handled where handler = :handler
order by 1;

-- name: list_latest_entries
-- A page of entries in descending order of position.
select event_id, position, first_us from {at}seriatim_handled
where handler = :handler and tenant_id = :tenant and position > 0 and position < :before
order by position desc limit :limit;

-- name: list_source_cursors
select source, cursor from {at}seriatim_sources where handler = :handler order by source;

-- name: list_cursors
select handler, source, cursor, updated_us from {at}seriatim_sources order by handler, source;

-- name: list_streams
select stream_type, stream_id, last_seq from {at}seriatim_streams
where handler = :handler and tenant_id = :tenant
  and (stream_type > :type or stream_type = :type and stream_id > :id)
order by stream_type, stream_id limit :limit;

-- name: count_lost_entries
-- Entries after the end of the shared history, by status.
select status, count(*), min(position) from {at}seriatim_handled
where handler = :handler and tenant_id = :tenant and position > :position
group by status order by status;

-- name: delete_lost_entries
-- Delete the entries after the end of the shared history.
delete from {at}seriatim_handled
where handler = :handler and tenant_id = :tenant and position > :position;

-- name: rewind_streams
-- Move streams back to their last sequence number in the shared history.
update {at}seriatim_streams as t set last_seq = g.last_seq
from {given} g
where t.handler = g.of_handler and t.tenant_id = :tenant and t.stream_type = g.stream_type
  and t.stream_id = g.stream_id and t.last_seq > g.last_seq;

-- name: delete_lost_streams
-- Delete the progress of streams that are not in the shared history.
delete from {at}seriatim_streams as t
where t.handler = :handler and t.tenant_id = :tenant and exists (
    select 1 from {given} g where g.stream_type = t.stream_type and g.stream_id = t.stream_id);

-- name: rebind_log
-- Bind a handler to the log that it is reset to.
insert into {at}seriatim_logs (handler, tenant_id, log_id, epoch, reason, updated_us)
values (:handler, :tenant, :log_id, :epoch, :reason, {now})
on conflict (handler, tenant_id) do update
set log_id = excluded.log_id, epoch = excluded.epoch, reason = excluded.reason,
    updated_us = excluded.updated_us;
