-- The index for reads by actor, without entries for events that have none.
create index events_by_actor on events (tenant_id, actor_id)
    where actor_id is not null;
