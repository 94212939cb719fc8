"""Spark integration: read, append, project, archive and audit a log on Spark.

`seriatim.spark` is its public API. This package imports nothing, because Spark's workers import it
with every task. Packages import only packages to their left: the modules of this package; `scan`;
`archive` and `sink`; `source`; `project`, `audit` and `lake`; `publish` and `work`. `kafka` and
`builtin_projections` import none of them.
"""
