-- The attempts of each subscription at the batch after its cursor, and the batches that were skipped.
-- Attempts belong to the position of the cursor: a program that does not know them moves it on.
alter table cursors add column attempts integer not null default 0;
-- The position of the cursor at the time.
alter table cursors add column attempt_after integer;
-- The batch.
alter table cursors add column attempt_first integer;
alter table cursors add column attempt_last integer;
-- Null unless the subscription waits for an operator.
alter table cursors add column parked_us integer;

-- The operator who skipped a batch is null if the subscription did by its policy.
create table skipped_batches (
    tenant_id text not null,
    name text not null,
    first_position integer not null,
    last_position integer not null,
    attempts integer not null,
    error text not null,
    skipped_us integer not null,
    skipped_by text,
    reason text not null,
    primary key (tenant_id, name, first_position)
) strict, without rowid;
