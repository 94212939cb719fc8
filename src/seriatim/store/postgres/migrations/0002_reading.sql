-- A view for reading the log with SQL by hand, and the index with which old command records are found.

create view {schema}.readable_events as
select position,
       append_position,
       coalesce(event_id, event_key::text)                   as event_id,
       tenant_id, stream_type, stream_id, stream_seq, event_type, event_version,
       occurred_at,
       to_timestamp(coalesce(occurred_us, recorded_us) / 1e6) as occurred,
       to_timestamp(recorded_us / 1e6)                        as recorded,
       producer_id, source_system, source_subsystem, actor_type, actor_id,
       request_id, correlation_id, causation_id, idempotency_key, app_id, env_id,
       metadata::jsonb as metadata,
       payload::jsonb  as payload,
       'sha256:' || encode(payload_hash, 'hex') as payload_hash,
       tags::jsonb     as tags
from {schema}.events;

create index commands_age on {schema}.commands (created_at);
