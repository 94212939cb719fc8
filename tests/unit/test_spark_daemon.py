"""The daemon of Spark's Python workers imports PySpark from where it is compiled."""

import pytest

from seriatim.pipeline.daemon import prefer_installed_pyspark

SITE = "/venv/lib/python3.11/site-packages"
ARCHIVE = f"{SITE}/pyspark/python/lib/pyspark.zip"


def test_an_installed_package_precedes_its_archive() -> None:
    """The archive of an installed PySpark is the last entry; the others keep their order."""
    path = ["", ARCHIVE, "/spark/py4j.zip", "/stdlib", SITE]

    assert prefer_installed_pyspark(path) == ["", "/spark/py4j.zip", "/stdlib", SITE, ARCHIVE]


@pytest.mark.parametrize(
    "path",
    [
        ["", ARCHIVE, "/stdlib"],
        ["", "/opt/spark/python/lib/pyspark.zip", "/stdlib", SITE],
        ["pyspark.zip", SITE, "/stdlib"],
        [],
    ],
    ids=["not installed", "another distribution", "shipped with a job", "empty"],
)
def test_other_archives_keep_their_place(path: list[str]) -> None:
    """An archive that is not part of an installed PySpark keeps its place on the path."""
    assert prefer_installed_pyspark(path) == path
