-- The tables of progress and failures, in SQL for both Postgres and SQLite.
-- {at} is the schema prefix, {now} the database's clock in microseconds, {lock} and {share} the
-- clauses that lock rows exclusively, or against changes.

-- name: create_projections
create table if not exists {at}seriatim_projections (
    name        text    not null,
    shadow      integer not null check (shadow in (0, 1)),
    tenant_id   text    not null,
    declaration text    not null,
    position    bigint  not null check (position >= 0),
    log_id      text    not null,
    epoch       integer not null,
    tip         text    not null,
    status      text    not null check (status in ('ready', 'paused', 'failed')),
    updated_us  bigint  not null,
    owner       text    not null default '',
    token       bigint  not null default 0,
    expires_us  bigint  not null default 0,
    primary key (name, shadow)
);

-- name: create_failures
create table if not exists {at}seriatim_failures (
    name       text    not null,
    shadow     integer not null,
    position   bigint  not null,
    tenant_id  text    not null,
    key        text    not null,
    event_id   text    not null,
    event_type text    not null,
    reason     text    not null,
    status     text    not null check (status in ('stopped', 'parked', 'skipped', 'passed')),
    failed_us  bigint  not null,
    again      integer not null default 0,  -- 1: its key will be folded again
    primary key (name, shadow, position)
);

-- The last column of these is the end of a hold. A rebuild or verification that must pause the runner
-- for a moment marks its shadow as paused. The hold ends with the lease of the shadow, so a killed job
-- leaves none. An operator's pause is the status of the live row, and remains.

-- name: select_progress
select name, shadow, tenant_id, declaration, position, log_id, epoch, tip, status, updated_us,
       case when expires_us > {now} then owner else '' end, token,
       (select h.expires_us from {at}seriatim_projections h
        where h.name = p.name and h.shadow = 1 and p.shadow = 0 and h.status = 'paused'
          and h.expires_us > {now})
from {at}seriatim_projections p where name = :name and shadow = :shadow;

-- name: lock_progress
-- With the owner of an expired lease too: a switch hands it to the new tables.
select name, shadow, tenant_id, declaration, position, log_id, epoch, tip, status, updated_us,
       owner, token,
       (select h.expires_us from {at}seriatim_projections h
        where h.name = p.name and h.shadow = 1 and p.shadow = 0 and h.status = 'paused'
          and h.expires_us > {now})
from {at}seriatim_projections p where name = :name and shadow = :shadow {lock};

-- name: lock_owned_shadow
-- Locked against a drop, but not against the other parts of the same rebuild.
select 1 from {at}seriatim_projections
where name = :name and shadow = 1 and owner = :owner {share};

-- name: list_progress
select name, shadow, tenant_id, declaration, position, log_id, epoch, tip, status, updated_us,
       case when expires_us > {now} then owner else '' end, token,
       (select h.expires_us from {at}seriatim_projections h
        where h.name = p.name and h.shadow = 1 and p.shadow = 0 and h.status = 'paused'
          and h.expires_us > {now})
from {at}seriatim_projections p order by name, shadow;

-- name: insert_progress
-- Returns no row if another runner has created the projection: it creates the tables as well.
insert into {at}seriatim_projections
    (name, shadow, tenant_id, declaration, position, log_id, epoch, tip, status, updated_us)
values (:name, :shadow, :tenant_id, :declaration, 0, :log_id, :epoch, '', 'ready', {now})
on conflict (name, shadow) do nothing
returning name;

-- name: update_cursor
update {at}seriatim_projections set position = :position, tip = :tip, updated_us = {now}
where name = :name and shadow = :shadow;

-- name: update_status
update {at}seriatim_projections set status = :status where name = :name and shadow = :shadow;

-- name: update_hold
-- Only by the job that holds the lease of the shadow, which limits the hold.
update {at}seriatim_projections set status = :status
where name = :name and shadow = 1 and token = :token
returning token;

-- name: delete_progress
delete from {at}seriatim_projections where name = :name and shadow = :shadow;

-- name: promote_shadow
-- The runner keeps the lease: its token must continue to rise.
update {at}seriatim_projections
set shadow = 0, owner = :owner, token = :token, status = :status, expires_us = 0
where name = :name and shadow = 1;

-- name: claim_lease
-- An owner may claim its own lease again, as the response of its first claim may have been lost. The
-- token rises with every claim.
update {at}seriatim_projections set owner = :owner, token = token + 1, expires_us = {now} + :for_us
where name = :name and shadow = :shadow and (expires_us <= {now} or owner = :owner)
returning token;

-- name: renew_lease
update {at}seriatim_projections set expires_us = {now} + :for_us
where name = :name and shadow = :shadow and token = :token
returning token;

-- name: list_failures
select tenant_id, key, position, event_id, event_type, reason, status, failed_us, again
from {at}seriatim_failures
where name = :name and shadow = :shadow and position > :after
  and (:tenant_id = '' or tenant_id = :tenant_id)
order by position limit :limit;

-- name: count_failures
select count(*), coalesce(sum(case when status = 'passed' then 0 else 1 end), 0)
from {at}seriatim_failures
where name = :name and shadow = :shadow and (:tenant_id = '' or tenant_id = :tenant_id);

-- name: insert_failure
-- A batch that is folded again reports its failures again.
insert into {at}seriatim_failures
    (name, shadow, position, tenant_id, key, event_id, event_type, reason, status, failed_us)
values (:name, :shadow, :position, :tenant_id, :key, :event_id, :event_type, :reason, :status, {now})
on conflict (name, shadow, position)
do update set reason = excluded.reason, status = excluded.status, failed_us = excluded.failed_us;

-- name: update_failure
update {at}seriatim_failures set status = :status, again = :again
where name = :name and shadow = 0 and position = :position
returning position;

-- name: delete_failures
delete from {at}seriatim_failures where name = :name and shadow = :shadow;

-- name: delete_failures_of_key
-- Events that an operator skipped remain skipped.
delete from {at}seriatim_failures
where name = :name and shadow = 0 and tenant_id = :tenant_id and key = :key and status <> 'passed';

-- name: clear_refolds_of_key
update {at}seriatim_failures set again = 0
where name = :name and shadow = 0 and tenant_id = :tenant_id and key = :key;

-- name: delete_failure
delete from {at}seriatim_failures where name = :name and shadow = 0 and position = :position;

-- name: copy_passed_failures
-- A rebuild skips the events that an operator has skipped.
insert into {at}seriatim_failures
    (name, shadow, position, tenant_id, key, event_id, event_type, reason, status, failed_us)
select name, 1, position, tenant_id, key, event_id, event_type, reason, status, failed_us
from {at}seriatim_failures where name = :name and shadow = 0 and status = 'passed'
on conflict (name, shadow, position) do nothing;

-- name: merge_passed_failures
-- Events that were skipped since the shadow was created: their keys must be folded again there.
insert into {at}seriatim_failures as f
    (name, shadow, position, tenant_id, key, event_id, event_type, reason, status, failed_us, again)
select name, 1, position, tenant_id, key, event_id, event_type, reason, status, failed_us, 1
from {at}seriatim_failures where name = :name and shadow = 0 and status = 'passed'
on conflict (name, shadow, position)
do update set status = 'passed', again = 1 where f.status <> 'passed';

-- name: promote_shadow_failures
update {at}seriatim_failures set shadow = 0 where name = :name and shadow = 1;
