-- The index for reads by actor, which holds nothing for events without one.
create index events_by_actor on events (tenant_id, actor_id)
    where actor_id is not null;
