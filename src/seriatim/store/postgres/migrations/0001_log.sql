-- The log: events, their tags, the declarations, and the triggers that protect them.
-- {schema} is the schema of the log. All names below are qualified with it, so that they do not depend
-- on the search path.

create table {schema}.log (
    only_row    boolean     primary key default true check (only_row),
    log_id      uuid        not null default gen_random_uuid(),
    epoch       integer     not null default 1 check (epoch >= 1),
    fingerprint text        not null,  -- cluster, timeline and database in which the epoch began
    created_at  timestamptz not null default now()
);

-- Ids and streams are indexed by 16-byte keys, and text is compared by bytes: both keep inserts cheap.
-- If event_id is null, the id is event_key itself; if occurred_at is null, it equals recorded_us.
create table {schema}.events (
    position          bigint           not null,
    append_position   bigint           not null,
    recorded_us       bigint           not null,
    stream_seq        bigint,
    occurred_us       bigint,
    event_version     integer          not null,
    event_key         uuid             not null,
    stream_key        uuid,
    idempotency_index uuid,
    payload_hash      bytea            not null,
    tenant_id         text collate "C" not null,
    event_id          text collate "C",
    stream_type       text collate "C",
    stream_id         text collate "C",
    event_type        text collate "C" not null,
    occurred_at       text collate "C",
    producer_id       text collate "C",
    source_system     text collate "C",
    source_subsystem  text collate "C",
    actor_type        text collate "C",
    actor_id          text collate "C",
    request_id        text collate "C",
    correlation_id    text collate "C",
    causation_id      text collate "C",
    idempotency_key   text collate "C",
    app_id            text collate "C",
    env_id            text collate "C",
    metadata          text collate "C",
    payload           text collate "C" not null,
    tags              text collate "C",
    constraint events_position primary key (position),
    constraint events_shape check (
        append_position between 1 and position
        and event_version >= 1
        and octet_length(payload_hash) = 32
        and (stream_key is null) = (stream_id is null)
        and (stream_key is null) = (stream_type is null)
        and (stream_key is null) = (stream_seq is null)
        and (stream_seq is null or stream_seq >= 0)
    )
);

create unique index events_id on {schema}.events (event_key, tenant_id);
create unique index events_stream on {schema}.events (stream_key, stream_seq)
    where stream_key is not null;
create unique index events_key on {schema}.events (idempotency_index)
    where idempotency_index is not null;
create index events_tenant on {schema}.events (tenant_id, position);
create index events_type on {schema}.events (tenant_id, event_type, position);
create index events_stream_type on {schema}.events (stream_key, event_type, position)
    where stream_key is not null;

-- Index keys of tags, and of payload values for which an index is declared.
create table {schema}.event_tags (
    tag_key  uuid   not null,
    position bigint not null,
    constraint event_tags_key primary key (tag_key, position)
);

-- Declarations are numbered without gaps; the highest number is the version of the rules.
create table {schema}.declarations (
    version       integer          primary key check (version >= 1),
    what          text collate "C" not null check (what in ('kind', 'type', 'index')),
    name          text collate "C" not null,
    event_version integer          not null default 0,
    body          text             not null,
    constraint declarations_name unique (what, name, event_version)
);

-- The part of a kind's rules that the database enforces itself.
create table {schema}.stream_kinds (
    name          text collate "C" primary key,
    first_seq     bigint           not null check (first_seq in (0, 1)),
    opening_type  text collate "C",
    closing_types text[]           not null,
    closed        boolean          not null  -- takes only the types that kind_types lists
);

create table {schema}.kind_types (
    kind       text collate "C",
    event_type text collate "C",
    primary key (kind, event_type)
);

insert into {schema}.stream_kinds values ('trace', 0, 'TraceStarted', array['TraceFinished'], true);
insert into {schema}.kind_types select 'trace', unnest(array[
    'TraceStarted', 'InputObserved', 'EntityObserved', 'PolicyEvaluated', 'ExceptionRequested',
    'ApprovalRecorded', 'PrecedentCited', 'ActionProposed', 'ActionCommitted', 'TraceFinished']);

create table {schema}.commands (
    command_key    uuid        primary key,
    tenant_id      text        not null,
    request_hash   text        not null,
    response       text        not null,
    first_position bigint      not null,
    last_position  bigint      not null,
    created_at     timestamptz not null default now()
);

create table {schema}.cursors (
    tenant_id  text collate "C" not null,
    purpose    text collate "C" not null check (purpose in ('subscription', 'projection')),
    name       text collate "C" not null,
    position   bigint           not null check (position >= 0),
    log_id     uuid             not null,
    epoch      integer          not null,
    tip        text             not null,
    query      text             not null,
    updated_us bigint           not null,
    primary key (tenant_id, purpose, name)
);

create table {schema}.leases (
    tenant_id  text collate "C" not null,
    name       text collate "C" not null,
    owner      text             not null,
    token      bigint           not null,
    expires_at timestamptz      not null,
    primary key (tenant_id, name)
);

-- One event as an append sends it; the log adds position, time and sequence number. The order of the
-- fields is part of the binary format: see binary_format.py.
create type {schema}.new_event as (
    append_offset     integer,  -- how far behind the first event of its append
    given_seq         bigint,   -- the number the caller demands, if any
    first_seq         bigint,   -- the number a new stream of its kind begins with
    occurred_us       bigint,
    event_version     integer,
    event_key         uuid,
    stream_key        uuid,
    idempotency_index uuid,
    payload_hash      bytea,
    tag_keys          uuid[],
    tenant_id         text,
    event_id          text,
    stream_type       text,
    stream_id         text,
    event_type        text,
    occurred_at       text,
    producer_id       text,
    source_system     text,
    source_subsystem  text,
    actor_type        text,
    actor_id          text,
    request_id        text,
    correlation_id    text,
    causation_id      text,
    idempotency_key   text,
    app_id            text,
    env_id            text,
    metadata          text,
    payload           text,
    tags              text
);

create function {schema}.now_us() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- The cluster, timeline and database of the log: if it changes, the log was restored or its server was
-- promoted. The control file of a promoted server has the new timeline only after the next checkpoint;
-- the name of the current WAL file has it at once.
create function {schema}.fingerprint() returns text language sql stable as $$
    select s.system_identifier || ':' || case
        when pg_is_in_recovery() then c.timeline_id
        else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer
    end || ':' || d.oid
    from pg_control_system() s, pg_control_checkpoint() c, pg_database d
    where d.datname = current_database()
$$;

insert into {schema}.log (fingerprint) values ({schema}.fingerprint());

-- Raise the epoch if the fingerprint has changed, once for all processes, or unconditionally with
-- p_always. Returns the new epoch, null if it was not raised.
create function {schema}.raise_epoch(p_always boolean) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_epoch integer;
begin
    update {schema}.log set epoch = epoch + 1, fingerprint = {schema}.fingerprint()
    where p_always or fingerprint <> {schema}.fingerprint()
    returning epoch into v_epoch;
    return v_epoch;
end $$;
revoke all on function {schema}.raise_epoch(boolean) from public;

-- Append a group: lock, number and insert in one call. The server completes it alone, so a client that
-- stops holds no lock. The lock is taken before the insert, which takes a new snapshot and so sees all
-- events committed before. Functions are called in expressions of the declarations, because PERFORM
-- would start an executor for each. Returns the head before the group, its time, and the sequence
-- number of each event.
create function {schema}.append_group(
    p_lock bigint, p_lock_wait_ms integer, p_rules integer, p_rows {schema}.new_event[],
    p_ranks integer[],  -- which of its stream's events in this group each one is; null: the first
    p_tagged boolean,
    p_head bigint  -- where the log must still end, for an append whose contexts were seen there
) returns bigint[] language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_wait   text := set_config('lock_timeout', p_lock_wait_ms::text, true);
    v_locked boolean := pg_advisory_xact_lock(p_lock) is not null;
    v_now    bigint := {schema}.now_us();
    v_placed bigint[];
begin
    with placed as (
        insert into {schema}.events
        select l.head + i.ordinality,
               l.head + i.ordinality - i.append_offset,
               v_now,
               case when i.stream_key is not null then coalesce(
                   i.given_seq,
                   coalesce(h.stream_seq, i.first_seq - 1) + coalesce(p_ranks[i.ordinality], 1))
               end,
               i.occurred_us, i.event_version, i.event_key, i.stream_key, i.idempotency_index,
               i.payload_hash, i.tenant_id, i.event_id, i.stream_type, i.stream_id, i.event_type,
               i.occurred_at, i.producer_id, i.source_system, i.source_subsystem, i.actor_type,
               i.actor_id, i.request_id, i.correlation_id, i.causation_id, i.idempotency_key,
               i.app_id, i.env_id, i.metadata, i.payload, i.tags
        from (select coalesce(max(e.position), 0) as head from {schema}.events e) l
        cross join unnest(p_rows) with ordinality i
        left join lateral (
            select e.stream_seq from {schema}.events e
            where e.stream_key = i.stream_key
            order by e.stream_seq desc limit 1
        ) h on true
        where p_rules = (select coalesce(max(d.version), 0) from {schema}.declarations d)
          and (p_head is null or p_head = l.head)
        returning position, stream_seq
    )
    select array[min(p.position) - 1, v_now] || array_agg(p.stream_seq order by p.position)
    into v_placed from placed p;
    if v_placed[1] is null then
        raise exception using errcode = 'SQ002', message = 'the declarations or the head have changed';
    end if;
    if p_tagged then
        insert into {schema}.event_tags
        select distinct k, v_placed[1] + i.ordinality
        from unnest(p_rows) with ordinality i, unnest(i.tag_keys) k;
    end if;
    return v_placed;
end $$;

-- Append a large group. For each row the client sends the index of its stream in p_streams and its rank
-- among the rows of that stream, so that each stream is looked up once and nothing is sorted. These
-- arrays are empty if no stream must be looked up, as in an import.
create function {schema}.append_batch(
    p_lock bigint, p_lock_wait_ms integer, p_rules integer, p_rows {schema}.new_event[],
    p_streams uuid[], p_first_seqs bigint[], p_stream integer[], p_nth integer[],
    p_tagged boolean, out head bigint, out recorded_us bigint, out ends bigint[]
) language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_wait   text := set_config('lock_timeout', p_lock_wait_ms::text, true);
    v_locked boolean := pg_advisory_xact_lock(p_lock) is not null;
begin
    if coalesce((select max(version) from {schema}.declarations), 0) <> p_rules then
        raise exception using errcode = 'SQ002', message = 'the declarations have changed';
    end if;
    head := coalesce((select max(e.position) from {schema}.events e), 0);
    recorded_us := {schema}.now_us();
    -- The last number of each stream, or the one before its first.
    ends := array(
        select coalesce((
            select e.stream_seq from {schema}.events e
            where e.stream_key = s.stream_key order by e.stream_seq desc limit 1), s.first_seq - 1)
        from unnest(p_streams, p_first_seqs) with ordinality s (stream_key, first_seq, nr)
        order by s.nr);
    insert into {schema}.events
    select append_batch.head + i.ordinality,
           append_batch.head + i.ordinality - i.append_offset,
           append_batch.recorded_us,
           case when i.stream_key is not null
               then coalesce(i.given_seq, append_batch.ends[i.stream] + i.nth)
           end,
           i.occurred_us, i.event_version, i.event_key, i.stream_key, i.idempotency_index,
           i.payload_hash, i.tenant_id, i.event_id, i.stream_type, i.stream_id, i.event_type,
           i.occurred_at, i.producer_id, i.source_system, i.source_subsystem, i.actor_type,
           i.actor_id, i.request_id, i.correlation_id, i.causation_id, i.idempotency_key,
           i.app_id, i.env_id, i.metadata, i.payload, i.tags
    from rows from (unnest(p_rows), unnest(p_stream), unnest(p_nth)) with ordinality i (
        append_offset, given_seq, first_seq, occurred_us, event_version, event_key, stream_key,
        idempotency_index, payload_hash, tag_keys, tenant_id, event_id, stream_type, stream_id,
        event_type, occurred_at, producer_id, source_system, source_subsystem, actor_type,
        actor_id, request_id, correlation_id, causation_id, idempotency_key, app_id, env_id,
        metadata, payload, tags, stream, nth, ordinality);
    if p_tagged then
        insert into {schema}.event_tags
        select k, append_batch.head + i.ordinality
        from unnest(p_rows) with ordinality i, unnest(i.tag_keys) k;
    end if;
end $$;

-- Check every inserted group once, whatever its origin: contiguous positions and streams, opening and
-- closing rules. Then notify the listeners (decision 0004).
create function {schema}.check_group() returns trigger
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_first  bigint;
    v_last   bigint;
    v_count  bigint;
    v_before bigint;
    v_told   boolean;
begin
    select a.first, a.last, a.count,
           coalesce((select max(e.position) from {schema}.events e where e.position < a.first), 0)
    into v_first, v_last, v_count, v_before
    from (select min(position), max(position), count(*) from added) a (first, last, count);
    if v_count = 0 then
        return null;
    end if;
    if v_first <> v_before + 1 or v_last - v_first + 1 <> v_count then
        raise exception using errcode = 'SQ001', message = 'positions must follow without a gap';
    end if;
    if exists (
        select from (
            select a.stream_key, min(a.stream_type) as stream_type, min(a.stream_seq) as first,
                   max(a.stream_seq) as last, count(*) as count
            from added a where a.stream_key is not null group by a.stream_key
        ) s
        left join {schema}.stream_kinds k on k.name = s.stream_type
        -- Nothing can lie before a first number, which is 0 or 1: no number, and no look.
        left join {schema}.events p on p.stream_key = s.stream_key
            and p.stream_seq = nullif(s.first, coalesce(k.first_seq, 1)) - 1
        where s.last - s.first + 1 <> s.count
           or (p.position is null and s.first <> coalesce(k.first_seq, 1))
           or p.event_type = any (k.closing_types)
           -- A kind may have been declared to begin at 0 when its streams had begun at 1.
           or (s.first = 0 and exists (
               select from {schema}.events n
               where n.stream_key = s.stream_key and n.stream_seq > s.last))
    ) or exists (
        select from added a join {schema}.stream_kinds k on k.name = a.stream_type
        where (k.opening_type is not null
               and (a.event_type = k.opening_type) <> (a.stream_seq = k.first_seq))
           or (a.event_type = any (k.closing_types) and exists (
               select from {schema}.events n
               where n.stream_key = a.stream_key and n.stream_seq = a.stream_seq + 1))
           or (k.closed and not exists (
               select from {schema}.kind_types t
               where t.kind = k.name and t.event_type = a.event_type))
    ) then
        raise exception using errcode = 'SQ001', message = 'a stream''s rules do not allow this';
    end if;
    v_told := pg_notify({channel}, '') is not null;
    return null;
end $$;

create trigger check_group after insert on {schema}.events
    referencing new table as added for each statement execute function {schema}.check_group();

create function {schema}.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception using errcode = 'SQ003',
        message = format('%s is append-only: %s is refused', tg_table_name, tg_op);
end $$;

create trigger refuse_change before update or delete or truncate on {schema}.events
    for each statement execute function {schema}.refuse_change();
create trigger refuse_change before update or delete or truncate on {schema}.event_tags
    for each statement execute function {schema}.refuse_change();
create trigger refuse_change before update or delete or truncate on {schema}.declarations
    for each statement execute function {schema}.refuse_change();
create trigger refuse_change before update or delete or truncate on {schema}.stream_kinds
    for each statement execute function {schema}.refuse_change();
create trigger refuse_change before update or delete or truncate on {schema}.kind_types
    for each statement execute function {schema}.refuse_change();
