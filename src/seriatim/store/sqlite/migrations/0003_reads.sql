-- Indexes for reads by related ids, without entries for events that have none, and the last failure of
-- each subscription.
create index events_by_correlation on events (tenant_id, correlation_id)
    where correlation_id is not null;
create index events_by_causation on events (tenant_id, causation_id)
    where causation_id is not null;

-- Failed attempts since the cursor last moved, and the last error.
alter table cursors add column failures integer not null default 0;
alter table cursors add column last_error text;
alter table cursors add column failed_us integer;
