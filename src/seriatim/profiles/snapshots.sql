-- Snapshots of aggregates, in SQL for both Postgres and SQLite.
-- {at} is the schema prefix, {now} the database's clock in microseconds.

-- name: create_snapshots
create table if not exists {at}seriatim_snapshots (
    tenant_id   text    not null,
    stream_type text    not null,
    stream_id   text    not null,
    stream_seq  bigint  not null,
    position    bigint  not null,
    event_id    text    not null,
    log_id      text    not null,
    epoch       integer not null,
    code        text    not null,
    state       text    not null,
    stored_us   bigint  not null,
    primary key (tenant_id, stream_type, stream_id)
);

-- name: select_snapshot
select tenant_id, stream_type, stream_id, stream_seq, position, event_id, log_id, epoch, code, state
from {at}seriatim_snapshots
where tenant_id = :tenant_id and stream_type = :stream_type and stream_id = :stream_id;

-- name: upsert_snapshot
-- An older snapshot of the same log and code never replaces a newer one.
insert into {at}seriatim_snapshots as s
       (tenant_id, stream_type, stream_id, stream_seq, position, event_id, log_id, epoch, code, state,
        stored_us)
values (:tenant_id, :stream_type, :stream_id, :stream_seq, :position, :event_id, :log_id, :epoch,
        :code, :state, {now})
on conflict (tenant_id, stream_type, stream_id) do update set
    stream_seq = excluded.stream_seq, position = excluded.position, event_id = excluded.event_id,
    log_id = excluded.log_id, epoch = excluded.epoch, code = excluded.code, state = excluded.state,
    stored_us = excluded.stored_us
where s.stream_seq < excluded.stream_seq or s.code <> excluded.code or s.log_id <> excluded.log_id
   or s.epoch <> excluded.epoch;
