"""The logs of the archive's tests."""

from tests.pipeline.archive.conftest import another_url, log_url

__all__ = ["another_url", "log_url"]
