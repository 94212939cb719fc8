"""Use a log on Spark: read, append, project, archive, export, publish, handle and audit.

The extra `spark` installs what this module needs; `kafka` and `lake` install what the publisher,
workers on topics and table exports need in addition. Names are imported on first use, so a program
loads only what it uses.

Example:
    import seriatim
    from seriatim.spark import Projector, activity, events, session

    with seriatim.open("sqlite:///shop.db") as log:
        log.append([seriatim.NewEvent("order.placed", {"total": 12})])

    spark = session()
    events(spark, "sqlite:///shop.db").groupBy("event_type").count().show()
    with Projector(spark, activity, "sqlite:///shop.db") as projector:
        projector.run()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seriatim.core.extras import import_name

if TYPE_CHECKING:
    from seriatim.config.delivery import PublisherSettings
    from seriatim.core.builtin_folds import aggregate_states, decision_graph
    from seriatim.delivery.handler_loop import Counts
    from seriatim.pipeline.archive.archiver import ArchiveReport, archive
    from seriatim.pipeline.archive.catalog import Archive, open_archive
    from seriatim.pipeline.archive.restore import RestoreReport, restore
    from seriatim.pipeline.archive.verification import ArchiveVerificationReport, verify_archive
    from seriatim.pipeline.audit.report import AuditReport, audit
    from seriatim.pipeline.builtin_projections import activity, compute_graph_digests
    from seriatim.pipeline.java_runtime import java_home
    from seriatim.pipeline.kafka.address import Target, parse_target
    from seriatim.pipeline.lake.delta import export_delta
    from seriatim.pipeline.lake.iceberg import export_iceberg
    from seriatim.pipeline.lake.table_export import ExportReport
    from seriatim.pipeline.project.projector import Projector
    from seriatim.pipeline.publish.publisher import Publisher, PublishReport
    from seriatim.pipeline.publish.reconciliation import ReconciliationReport, reconcile
    from seriatim.pipeline.sink.frame_writer import AppendReport, append_frame
    from seriatim.pipeline.source.data_source import SeriatimSource, register
    from seriatim.pipeline.source.dataframe import events
    from seriatim.pipeline.source.spark_session import session
    from seriatim.pipeline.work.worker import Worker
    from seriatim.runs.job_loop import RunReport
    from seriatim.runs.rebuild import Proof
    from seriatim.store.readmodel.port import Progress

__all__ = [
    "AppendReport",
    "Archive",
    "ArchiveReport",
    "ArchiveVerificationReport",
    "AuditReport",
    "Counts",
    "ExportReport",
    "Progress",
    "Projector",
    "Proof",
    "PublishReport",
    "Publisher",
    "PublisherSettings",
    "ReconciliationReport",
    "RestoreReport",
    "RunReport",
    "SeriatimSource",
    "Target",
    "Worker",
    "activity",
    "aggregate_states",
    "append_frame",
    "archive",
    "audit",
    "compute_graph_digests",
    "decision_graph",
    "events",
    "export_delta",
    "export_iceberg",
    "java_home",
    "open_archive",
    "parse_target",
    "reconcile",
    "register",
    "restore",
    "session",
    "verify_archive",
]

# The module that defines each name.
_MODULES = {
    "AppendReport": "seriatim.pipeline.sink.frame_writer",
    "Archive": "seriatim.pipeline.archive.catalog",
    "ArchiveReport": "seriatim.pipeline.archive.archiver",
    "ArchiveVerificationReport": "seriatim.pipeline.archive.verification",
    "AuditReport": "seriatim.pipeline.audit.report",
    "Counts": "seriatim.delivery.handler_loop",
    "ExportReport": "seriatim.pipeline.lake.table_export",
    "Progress": "seriatim.store.readmodel.port",
    "Projector": "seriatim.pipeline.project.projector",
    "Proof": "seriatim.runs.rebuild",
    "PublishReport": "seriatim.pipeline.publish.publisher",
    "Publisher": "seriatim.pipeline.publish.publisher",
    "PublisherSettings": "seriatim.config.delivery",
    "ReconciliationReport": "seriatim.pipeline.publish.reconciliation",
    "RestoreReport": "seriatim.pipeline.archive.restore",
    "RunReport": "seriatim.runs.job_loop",
    "SeriatimSource": "seriatim.pipeline.source.data_source",
    "Target": "seriatim.pipeline.kafka.address",
    "Worker": "seriatim.pipeline.work.worker",
    "activity": "seriatim.pipeline.builtin_projections",
    "aggregate_states": "seriatim.core.builtin_folds",
    "append_frame": "seriatim.pipeline.sink.frame_writer",
    "archive": "seriatim.pipeline.archive.archiver",
    "audit": "seriatim.pipeline.audit.report",
    "compute_graph_digests": "seriatim.pipeline.builtin_projections",
    "decision_graph": "seriatim.core.builtin_folds",
    "events": "seriatim.pipeline.source.dataframe",
    "export_delta": "seriatim.pipeline.lake.delta",
    "export_iceberg": "seriatim.pipeline.lake.iceberg",
    "java_home": "seriatim.pipeline.java_runtime",
    "open_archive": "seriatim.pipeline.archive.catalog",
    "parse_target": "seriatim.pipeline.kafka.address",
    "reconcile": "seriatim.pipeline.publish.reconciliation",
    "register": "seriatim.pipeline.source.data_source",
    "restore": "seriatim.pipeline.archive.restore",
    "session": "seriatim.pipeline.source.spark_session",
    "verify_archive": "seriatim.pipeline.archive.verification",
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use.

    Raises:
        ModuleNotFoundError: A library is missing; the message names the extra that installs it.
    """
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = import_name(_MODULES[name], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
