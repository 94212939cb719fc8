"""Audit of a whole log on Spark."""

from seriatim.pipeline.audit.report import AuditReport, TypeStatistics, audit

__all__ = ["AuditReport", "TypeStatistics", "audit"]
