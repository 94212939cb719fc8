-- Version 1: the log, its indexes and the triggers that enforce its rules.
-- Programs made for the schema version `works_from` or later can use this file.
create table seriatim_schema (
    one integer primary key check (one = 1),
    version integer not null,
    works_from integer not null check (works_from <= version)
) strict;

create table log (
    one integer primary key check (one = 1),
    log_id text not null check (length(log_id) = 36),
    epoch integer not null check (epoch >= 1),
    created_us integer not null
) strict;

-- The columns of EventRecord, then the index keys. If occurred_at is null, it equals recorded_us.
create table events (
    position integer primary key check (position >= 1),
    append_position integer not null check (append_position between 1 and position),
    event_id text not null,
    tenant_id text not null check (tenant_id <> ''),
    stream_type text,
    stream_id text,
    stream_seq integer check (stream_seq >= 0),
    event_type text not null check (event_type <> ''),
    event_version integer not null check (event_version >= 1),
    occurred_at text,
    recorded_us integer not null,
    producer_id text,
    source_system text,
    source_subsystem text,
    actor_type text,
    actor_id text,
    request_id text,
    correlation_id text,
    causation_id text,
    idempotency_key text,
    app_id text,
    env_id text,
    metadata text,
    payload text not null check (payload <> ''),
    payload_hash blob not null check (length(payload_hash) = 32),
    tags text,
    occurred_us integer,
    event_key blob not null check (length(event_key) = 16),
    stream_key blob check (length(stream_key) = 16),
    idempotency_index blob check (length(idempotency_index) = 16),
    check ((occurred_at is null) = (occurred_us is null)),
    check ((stream_type is null) = (stream_key is null)),
    check ((stream_id is null) = (stream_key is null)),
    check ((stream_seq is null) = (stream_key is null)),
    check (idempotency_index is null or idempotency_key is not null)
) strict;

-- Every index ends with the position, which is the row's own id.
create unique index events_by_id on events (event_key, tenant_id);
create unique index events_by_stream on events (stream_key, stream_seq) where stream_key is not null;
create unique index events_by_idempotency on events (idempotency_index)
    where idempotency_index is not null;
create index events_by_tenant on events (tenant_id);
create index events_by_type on events (tenant_id, event_type);
-- The first hundred events of a stream are not indexed by type; they are scanned. Most streams are
-- shorter, and an append to one then changes one random page less.
create index events_by_stream_type on events (stream_key, event_type) where stream_seq > 100;
-- The first event of a stream has number 0 or 1, so a listing of streams reads few other events.
create index events_opening on events (tenant_id) where stream_seq <= 1;

-- Index keys of tags, and of payload values for which an index is declared.
create table event_tags (
    tag_key blob not null check (length(tag_key) = 16),
    position integer not null,
    primary key (tag_key, position)
) strict, without rowid;

create table declarations (
    version integer primary key check (version >= 1),
    what text not null check (what in ('kind', 'type', 'index')),
    name text not null,
    event_version integer not null,
    body text not null,
    unique (what, name, event_version)
) strict;

-- The rules of kinds that the triggers below need; built-in kinds are not declared.
create table stream_kinds (
    name text primary key,
    first_seq integer not null check (first_seq in (0, 1)),
    opening_type text
) strict, without rowid;

create table closing_types (
    kind text not null,
    event_type text not null,
    primary key (kind, event_type)
) strict, without rowid;

insert into stream_kinds (name, first_seq, opening_type)
    values ('aggregate', 1, null), ('trace', 0, 'TraceStarted');
insert into closing_types (kind, event_type) values ('trace', 'TraceFinished');

create table commands (
    command_key blob primary key check (length(command_key) = 16),
    request_hash text not null,
    response text not null,
    first_position integer not null,
    last_position integer not null,
    created_us integer not null
) strict;

create index commands_by_age on commands (created_us);

create table cursors (
    tenant_id text not null,
    purpose text not null,
    name text not null,
    position integer not null check (position >= 0),
    log_id text not null,
    epoch integer not null,
    tip text not null,
    query text not null,
    updated_us integer not null,
    primary key (tenant_id, purpose, name)
) strict, without rowid;

create table leases (
    tenant_id text not null,
    name text not null,
    owner text not null,
    token integer not null check (token >= 1),
    expires_us integer not null,
    primary key (tenant_id, name)
) strict, without rowid;

-- One trigger for all checks, since calling a trigger costs more than a check. The last event of a
-- stream is read only if its kind has closing events.
create trigger events_in_order before insert on events begin
    select case
        when new.position is not coalesce((select max(position) from events), 0) + 1
        then raise(abort, 'position is not the next one')

        when new.append_position <> new.position and new.append_position is not (
            select append_position from events where position = new.position - 1
        ) then raise(abort, 'append_position does not continue the append before')

        -- An INSERT OR REPLACE would delete the row in its way without a delete trigger.
        when exists (
            select 1 from events where event_key = new.event_key and tenant_id = new.tenant_id
        ) then raise(abort, 'event_id is taken')

        when new.idempotency_index is not null and exists (
            select 1 from events where idempotency_index = new.idempotency_index
        ) then raise(abort, 'idempotency_key is taken')

        when new.stream_key is null then null

        when new.stream_seq is not coalesce(
            (select max(stream_seq) + 1 from events where stream_key = new.stream_key),
            (select first_seq from stream_kinds where name = new.stream_type),
            1
        ) then raise(abort, 'stream_seq is not the next one')

        when exists (
            select 1 from closing_types cross join events as last
            where closing_types.kind = new.stream_type
            and last.stream_key = new.stream_key and last.stream_seq = new.stream_seq - 1
            and last.event_type = closing_types.event_type
        ) then raise(abort, 'the stream is closed')

        when exists (
            select 1 from stream_kinds where name = new.stream_type and opening_type is not null
            and (new.event_type = opening_type) <> (new.stream_seq = first_seq)
        ) then raise(abort, 'the opening type stands first, and only there')
    end;
end;

create trigger events_keep_update before update on events begin
    select raise(abort, 'events are immutable');
end;

create trigger events_keep_delete before delete on events begin
    select raise(abort, 'events are immutable');
end;

create trigger event_tags_of_events before insert on event_tags begin
    select raise(abort, 'there is no such event') where not exists (
        select 1 from events where position = new.position
    );
end;

create trigger event_tags_keep_update before update on event_tags begin
    select raise(abort, 'tags of events are immutable');
end;

create trigger event_tags_keep_delete before delete on event_tags begin
    select raise(abort, 'tags of events are immutable');
end;

create trigger log_once before insert on log when exists (select 1 from log) begin
    select raise(abort, 'the log has its identity');
end;

create trigger log_keep_update before update on log
when new.log_id <> old.log_id or new.created_us <> old.created_us or new.epoch <= old.epoch begin
    select raise(abort, 'of the identity of a log only the epoch changes, and it only rises');
end;

create trigger log_keep_delete before delete on log begin
    select raise(abort, 'the identity of a log is immutable');
end;

create trigger declarations_in_order before insert on declarations begin
    select raise(abort, 'version is not the next one')
        where new.version is not coalesce((select max(version) from declarations), 0) + 1;
end;

create trigger declarations_of_kinds after insert on declarations when new.what = 'kind' begin
    insert into stream_kinds (name, first_seq, opening_type) values (
        new.name, json_extract(new.body, '$.first_seq'), json_extract(new.body, '$.opening_type')
    );
    insert into closing_types (kind, event_type)
        select distinct new.name, value from json_each(new.body, '$.closing_types');
end;

create trigger declarations_keep_update before update on declarations begin
    select raise(abort, 'declarations are immutable');
end;

create trigger declarations_keep_delete before delete on declarations begin
    select raise(abort, 'declarations are immutable');
end;

create trigger stream_kinds_keep_update before update on stream_kinds begin
    select raise(abort, 'declarations are immutable');
end;

create trigger stream_kinds_keep_delete before delete on stream_kinds begin
    select raise(abort, 'declarations are immutable');
end;

create trigger closing_types_keep_update before update on closing_types begin
    select raise(abort, 'declarations are immutable');
end;

create trigger closing_types_keep_delete before delete on closing_types begin
    select raise(abort, 'declarations are immutable');
end;
