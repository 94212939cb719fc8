-- A view for reading the log with SQL by hand.

create view readable_events as
select position,
       append_position,
       event_id,
       tenant_id, stream_type, stream_id, stream_seq, event_type, event_version,
       occurred_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(occurred_us, recorded_us) / 1e6, 'unixepoch')
           as occurred,
       strftime('%Y-%m-%dT%H:%M:%fZ', recorded_us / 1e6, 'unixepoch') as recorded,
       producer_id, source_system, source_subsystem, actor_type, actor_id,
       request_id, correlation_id, causation_id, idempotency_key, app_id, env_id,
       metadata,
       payload,
       'sha256:' || lower(hex(payload_hash)) as payload_hash,
       tags
from events;
