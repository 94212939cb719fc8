"""Run projections: the runner, the rebuild and the job loop of every engine; the local engine."""
