"""No SQL statement of the package deletes or changes an event."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "seriatim"
TABLES = r"(?:events|event_tags)\b"
REMOVING = re.compile(
    rf"\b(?:delete\s+from|truncate(?:\s+table)?|update|drop\s+table(?:\s+if\s+exists)?)\s+"
    rf"(?:only\s+)?(?:\{{schema\}}\.|\w+\.)?{TABLES}",
    re.IGNORECASE,
)


def test_no_statement_removes_events() -> None:
    """F4: nothing deletes events, in any SQL file and in any SQL that Python writes."""
    files = [*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.py")]
    found = [path.name for path in files if REMOVING.search(path.read_text(encoding="utf-8"))]

    assert len(files) > 100
    assert found == []


def test_a_removing_statement_would_be_found() -> None:
    """F4: the pattern detects such statements in the style of both backends."""
    for statement in (
        "delete from {schema}.events where position < 5",
        "DELETE FROM events",
        "truncate {schema}.event_tags",
        "update seriatim.events set payload = ''",
        "drop table if exists events",
    ):
        assert REMOVING.search(statement), statement
