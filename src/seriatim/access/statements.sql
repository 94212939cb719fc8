-- Tokens, quotas and stored responses, in SQL that Postgres and SQLite share.
-- {at} is the schema prefix, {now} the current time of the database in microseconds.

-- name: create_tokens
-- Only the hash of a token's secret is stored.
create table if not exists {at}seriatim_tokens (
    token_id    text    not null primary key,
    secret_hash text    not null,
    subject     text    not null,
    service     integer not null,
    tenant_id   text    not null,
    rights      text    not null,
    types       text,
    note        text    not null default '',
    created_us  bigint  not null,
    expires_us  bigint,
    revoked_us  bigint
);

-- name: create_quotas
create table if not exists {at}seriatim_quotas (
    tenant_id       text             not null primary key,
    events_per_s    double precision not null,
    bytes_per_s     double precision not null,
    updated_us      bigint           not null
);

-- name: create_responses
-- Responses to commands that append nothing: duplicates receive the same response.
-- A row without a status is a reservation, valid until until_us.
create table if not exists {at}seriatim_answers (
    command_key  text    not null primary key,
    tenant_id    text    not null,
    request_hash text    not null,
    owner        text    not null,
    status       integer,
    body         text,
    created_us   bigint  not null,
    until_us     bigint  not null
);

-- name: create_response_age_index
create index if not exists seriatim_answers_age on {at}seriatim_answers (created_us);

-- name: create_response_tenant_index
create index if not exists seriatim_answers_whose on {at}seriatim_answers (tenant_id);

-- name: create_secrets
create table if not exists {at}seriatim_secrets (
    name  text not null primary key,
    value text not null
);

-- name: create_token_uses
-- A table of its own, so that opening a store of an older version adds it.
create table if not exists {at}seriatim_token_uses (
    token_id text   not null primary key,
    used_us  bigint not null
);

-- name: insert_token
insert into {at}seriatim_tokens
(token_id, secret_hash, subject, service, tenant_id, rights, types, note, created_us, expires_us)
values (
    :token_id, :secret_hash, :subject, :service, :tenant_id, :rights, :types, :note, {now},
    case when cast(:lifetime_us as bigint) is null then null else {now} + :lifetime_us end
)
returning created_us, expires_us

-- name: select_token
select
    token_id, subject, service, tenant_id, rights, types, note,
    created_us, expires_us, revoked_us, used_us, secret_hash, {now}
from {at}seriatim_tokens
left join {at}seriatim_token_uses using (token_id)
where token_id = :token_id

-- name: list_tokens
select
    token_id, subject, service, tenant_id, rights, types, note,
    created_us, expires_us, revoked_us, used_us
from {at}seriatim_tokens
left join {at}seriatim_token_uses using (token_id)
order by created_us, token_id

-- name: list_tokens_after
select
    token_id, subject, service, tenant_id, rights, types, note,
    created_us, expires_us, revoked_us, used_us
from {at}seriatim_tokens
left join {at}seriatim_token_uses using (token_id)
where (cast(:tenant_id as text) is null or tenant_id = :tenant_id)
  and (
    cast(:after as text) is null
    or (created_us, token_id) > (
        select t.created_us, t.token_id from {at}seriatim_tokens t where t.token_id = :after
    )
)
order by created_us, token_id
limit :limit

-- name: update_token_use
insert into {at}seriatim_token_uses (token_id, used_us)
values (:token_id, {now} - :ago_us)
on conflict (token_id) do update set used_us = excluded.used_us
where {at}seriatim_token_uses.used_us < excluded.used_us

-- name: find_any_token
select 1 from {at}seriatim_tokens limit 1

-- name: list_ended_tokens
-- Tokens that were revoked or that expired within the last :since_us microseconds.
select token_id
from {at}seriatim_tokens
where revoked_us > {now} - :since_us
   or (expires_us <= {now} and expires_us > {now} - :since_us)

-- name: revoke_token
update {at}seriatim_tokens set revoked_us = {now}
where token_id = :token_id and revoked_us is null
returning token_id

-- name: list_quotas
select tenant_id, events_per_s, bytes_per_s from {at}seriatim_quotas order by tenant_id

-- name: set_quota
insert into {at}seriatim_quotas (tenant_id, events_per_s, bytes_per_s, updated_us)
values (:tenant_id, :events_per_s, :bytes_per_s, {now})
on conflict (tenant_id) do update
set events_per_s = excluded.events_per_s,
    bytes_per_s = excluded.bytes_per_s,
    updated_us = excluded.updated_us

-- name: delete_quota
delete from {at}seriatim_quotas where tenant_id = :tenant_id returning tenant_id

-- name: reserve_response
-- Of concurrent duplicates one gets the row; an expired reservation can be taken over.
insert into {at}seriatim_answers
(command_key, tenant_id, request_hash, owner, created_us, until_us)
values (:command_key, :tenant_id, :request_hash, :owner, {now}, {now} + :reservation_us)
on conflict (command_key) do update
set owner = excluded.owner, until_us = excluded.until_us
where {at}seriatim_answers.status is null
  and {at}seriatim_answers.until_us < {now}
  and {at}seriatim_answers.request_hash = excluded.request_hash
returning command_key

-- name: select_response
select request_hash, status, body, until_us < {now}
from {at}seriatim_answers where command_key = :command_key

-- name: count_responses
select count(*)
from (select 1 from {at}seriatim_answers where tenant_id = :tenant_id limit :at_most) a

-- name: update_response
update {at}seriatim_answers set status = :status, body = :body
where command_key = :command_key and owner = :owner

-- name: delete_reservation
delete from {at}seriatim_answers where command_key = :command_key and owner = :owner

-- name: delete_old_responses
delete from {at}seriatim_answers where created_us < {now} - :older_us returning command_key

-- name: insert_secret
insert into {at}seriatim_secrets (name, value) values (:name, :value)
on conflict (name) do nothing

-- name: select_secret
select value from {at}seriatim_secrets where name = :name

-- name: create_jobs
-- Verifications and rebuilds of projections. The process that runs one updates beat_us.
create table if not exists {at}seriatim_jobs (
    job_id      text   not null primary key,
    kind        text   not null,
    projection  text   not null,
    tenant_id   text   not null,
    status      text   not null,
    actor_id    text   not null,
    reason      text   not null,
    progress    text   not null,
    result      text,
    error       text   not null,
    created_us  bigint not null,
    started_us  bigint,
    finished_us bigint,
    beat_us     bigint not null
);

-- name: create_open_job_index
-- At most one unfinished job of a projection.
create unique index if not exists seriatim_jobs_open
on {at}seriatim_jobs (tenant_id, projection) where status in ('queued', 'running');

-- name: insert_job
insert into {at}seriatim_jobs
(job_id, kind, projection, tenant_id, status, actor_id, reason, progress, error, created_us, beat_us)
values (
    :job_id, :kind, :projection, :tenant_id, 'queued', :actor_id, :reason, '[]', '', {now}, {now}
)
on conflict do nothing
returning job_id

-- name: select_job
select job_id, kind, projection, tenant_id, status, actor_id, reason, progress, result, error,
       created_us, started_us, finished_us
from {at}seriatim_jobs where job_id = :job_id

-- name: list_jobs
select job_id, kind, projection, tenant_id, status, actor_id, reason, progress, result, error,
       created_us, started_us, finished_us
from {at}seriatim_jobs order by created_us desc, job_id limit :limit

-- name: update_job
update {at}seriatim_jobs
set status = 'running', progress = :progress, beat_us = {now},
    started_us = coalesce(started_us, {now})
where job_id = :job_id and status in ('queued', 'running')
returning job_id

-- name: finish_job
update {at}seriatim_jobs
set status = :status, result = cast(:result as text), error = :error, finished_us = {now}
where job_id = :job_id and status in ('queued', 'running')

-- name: fail_lost_jobs
update {at}seriatim_jobs
set status = 'failed', finished_us = {now}, error = 'the process that ran this job has ended'
where status in ('queued', 'running') and beat_us < {now} - :lost_us

-- name: delete_old_jobs
delete from {at}seriatim_jobs
where status not in ('queued', 'running') and job_id not in (
    select job_id from {at}seriatim_jobs order by created_us desc, job_id limit :jobs_max
)
