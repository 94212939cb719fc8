-- Indexes for reads by related ids, without entries for events that have none, and the last failure of
-- each subscription. On a log with events the indexes are built concurrently, before this file runs:
-- see migrate.py.

create index if not exists events_correlation
    on {schema}.events (tenant_id, correlation_id, position) where correlation_id is not null;
create index if not exists events_causation
    on {schema}.events (tenant_id, causation_id, position) where causation_id is not null;

alter table {schema}.cursors
    add column failures   integer not null default 0,  -- in a row, since the cursor last moved
    add column last_error text,
    add column failed_us  bigint;
