-- One function stores groups of every size in one pass, also those that were decided under the lock.
-- append_group and append_batch serve programs of the previous version only: append_group looked up
-- the stream of each event, and the rows of append_batch and of decided appends were checked again by
-- the trigger.

-- Locks, numbers, checks and inserts one group of appends in one call. The server completes it alone:
-- a client that stops or dies holds no lock. It runs as its owner, so that the trigger can tell its
-- rows from those that a role inserts itself; the caller still needs the privilege to insert. The
-- lock is acquired before the first look-up, which then takes a snapshot with every earlier append.
-- Nothing is believed: what the caller sends about the streams is compared with the log, or stored as
-- sent, so that it cannot differ from the rows.
-- Returns the head before the group, its time, and the last number of each stream before the group.
create function {schema}.append_events(
    p_lock         bigint,
    p_lock_wait_ms integer,  -- null: as long as the transaction waits
    p_rules        integer,  -- the version of the declarations under which the group was checked
    p_head         bigint,   -- the required head; null: any
    p_recorded_us  bigint,   -- the time of the events; null: now
    p_tagged       boolean,
    p_rows         {schema}.new_event[],
    -- The streams of a group of two events or more, null if it has none: of each stream its key, its
    -- type and its number of events; of each event the index of its stream, 0 without one, and its
    -- rank in it, from 1.
    p_streams      uuid[],
    p_types        text[],
    p_counts       integer[],
    p_indexes      integer[],
    p_ranks        integer[]
) returns bigint[] language plpgsql volatile security definer
set enable_seqscan = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp as $$
declare
    v_wait     text := set_config(
        'lock_timeout', coalesce(p_lock_wait_ms::text, current_setting('lock_timeout')), true);
    v_locked   boolean := pg_advisory_xact_lock(p_lock) is not null;
    v_now      bigint := coalesce(p_recorded_us, {schema}.now_us());
    v_checked  text := set_config('seriatim.checked', 'on', true);  -- for the trigger: see 0006
    v_log      record;   -- what the log has before the group
    v_ends     bigint[]; -- the last number of each stream before the group
    v_notified boolean;
    v_event    {schema}.new_event;  -- the event of a group of one
    v_seq      bigint;
begin
    -- Inside this function current_user is its owner; SET ROLE and the login tell who called it.
    if not has_table_privilege(
        coalesce(nullif(current_setting('role'), 'none'), session_user)::name,
        {schema_text} || '.events', 'insert'
    ) then
        raise exception using errcode = '42501', message = 'permission denied for table events';
    end if;
    if cardinality(p_rows) = 1 then
        -- A plain insert starts in half the time of the statement for groups.
        v_event := p_rows[1];
        select coalesce((select max(e.position) from {schema}.events e), 0) as head,
               coalesce((select max(d.version) from {schema}.declarations d), 0) as rules,
               h.stream_seq as last_seq, h.event_type as last_type, k.name, k.first_seq,
               k.opening_type, k.closing_types,
               k.closed and not exists (
                   select from {schema}.kind_types t
                   where t.kind = k.name and t.event_type = v_event.event_type
               ) as closed
        into v_log
        from (select) only_row
        left join lateral (
            select e.stream_seq, e.event_type from {schema}.events e
            where e.stream_key = v_event.stream_key
            order by e.stream_seq desc limit 1
        ) h on true
        left join {schema}.stream_kinds k on k.name = v_event.stream_type;
    else
        select coalesce((select max(e.position) from {schema}.events e), 0) as head,
               coalesce((select max(d.version) from {schema}.declarations d), 0) as rules,
               s.*
        into v_log
        from (
            select array_agg(
                       case
                           when h.event_type = any (k.closing_types)
                               or h.stream_type <> n.stream_type
                               or n.events < 1
                           then {schema}.refuse_event()
                           else coalesce(h.stream_seq, k.first_seq - 1, 0)
                       end order by n.ordinality
                   ) as ends,
                   bool_or(k.name is not null) as ruled,  -- a stream has a kind with rules
                   coalesce(sum(n.events), 0) as events
            from unnest(p_streams, p_types, p_counts)
                with ordinality n (stream_key, stream_type, events)
            left join lateral (
                select e.stream_seq, e.event_type, e.stream_type from {schema}.events e
                where e.stream_key = n.stream_key
                order by e.stream_seq desc limit 1
            ) h on true
            -- The fence keeps this a look-up by name, whatever the planner expects.
            left join lateral (
                select * from {schema}.stream_kinds d where d.name = n.stream_type offset 0
            ) k on true
        ) s;
    end if;
    if v_log.rules <> p_rules or v_log.head <> p_head then
        raise exception using errcode = 'SQ002', message = 'the declarations or the head have changed';
    end if;
    if cardinality(p_rows) = 1 then
        if v_event.stream_key is not null then
            v_seq := coalesce(v_log.last_seq + 1, v_log.first_seq, 1);
            v_ends := array[v_seq - 1];
            if v_event.given_seq <> v_seq or (v_log.name is not null and (
                v_log.last_type = any (v_log.closing_types)
                or (v_log.opening_type is not null
                    and (v_event.event_type = v_log.opening_type) <> (v_seq = v_log.first_seq))
                or v_log.closed
            )) then
                perform {schema}.refuse_event();
            end if;
        end if;
        insert into {schema}.events values (
            v_log.head + 1, v_log.head + 1 - v_event.append_offset, v_now, v_seq,
            v_event.occurred_us, v_event.event_version, v_event.event_key, v_event.stream_key,
            v_event.idempotency_index, v_event.payload_hash, v_event.tenant_id, v_event.event_id,
            v_event.stream_type, v_event.stream_id, v_event.event_type, v_event.occurred_at,
            v_event.producer_id, v_event.source_system, v_event.source_subsystem,
            v_event.actor_type, v_event.actor_id, v_event.request_id, v_event.correlation_id,
            v_event.causation_id, v_event.idempotency_key, v_event.app_id, v_event.env_id,
            v_event.metadata, v_event.payload, v_event.tags);
    else
        v_ends := v_log.ends;  -- in a variable, each of its elements is found at once
        -- Numbers leave no gap if each rank lies between 1 and the count of its stream, no rank
        -- occurs twice, which the unique index ensures, and there are as many events as counted.
        if v_log.events <> coalesce(cardinality(array_remove(p_indexes, 0)), 0) then
            perform {schema}.refuse_event();
        end if;
        insert into {schema}.events
        select v_log.head + i.ordinality,
               v_log.head + i.ordinality - i.append_offset,
               v_now,
               case
                   when i.stream_id is null then null  -- events_shape refuses other stream fields
                   when p_ranks[i.ordinality] between 1 and p_counts[p_indexes[i.ordinality]]
                       and coalesce(i.given_seq = s.seq, true)
                       and (not v_log.ruled or not exists (
                           select from {schema}.stream_kinds k
                           where k.name = p_types[p_indexes[i.ordinality]] and (
                               (k.opening_type is not null
                                and (i.event_type = k.opening_type) <> (s.seq = k.first_seq))
                               or (i.event_type = any (k.closing_types)
                                   and p_ranks[i.ordinality] < p_counts[p_indexes[i.ordinality]])
                               or (k.closed and not exists (
                                   select from {schema}.kind_types t
                                   where t.kind = k.name and t.event_type = i.event_type)))
                       )) then s.seq
                   else {schema}.refuse_event()
               end,
               i.occurred_us, i.event_version, i.event_key, p_streams[p_indexes[i.ordinality]],
               i.idempotency_index, i.payload_hash, i.tenant_id, i.event_id,
               p_types[p_indexes[i.ordinality]], i.stream_id, i.event_type, i.occurred_at,
               i.producer_id, i.source_system, i.source_subsystem, i.actor_type, i.actor_id,
               i.request_id, i.correlation_id, i.causation_id, i.idempotency_key, i.app_id,
               i.env_id, i.metadata, i.payload, i.tags
        from unnest(p_rows) with ordinality i
        cross join lateral (
            select v_ends[p_indexes[i.ordinality]] + p_ranks[i.ordinality] as seq
        ) s;
    end if;
    if p_tagged then
        insert into {schema}.event_tags
        select k, v_log.head + i.ordinality
        from unnest(p_rows) with ordinality i, unnest(i.tag_keys) k;
    end if;
    v_checked := set_config('seriatim.checked', '', true);
    v_notified := pg_notify({channel}, '') is not null;
    return array[v_log.head, v_now] || v_ends;
end $$;
