-- The index for reads by actor, without entries for events that have none. On a log with events it is
-- built concurrently, before this file runs: see migrate.py.

create index if not exists events_actor
    on {schema}.events (tenant_id, actor_id, position) where actor_id is not null;
