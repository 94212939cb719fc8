"""Demo step: the guard refuses secrets, naming the rule and the path but never the value."""

from __future__ import annotations

from typing import Any

from seriatim import NewEvent, PiiPolicyViolation
from seriatim.examples.demo_report import DemoReport, make_demo_table

# Invented, and assembled here so that secret scanners do not report this file.
_KEY_ID = "AKIA" + "Z7Q2M4XK9T3B6WPL"
_PASSWORD = "hunter" + "2-but-longer"
_ATTEMPTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a cloud key in a config", {"env": {"vars": ["REGION=eu", f"AWS_KEY={_KEY_ID}"]}}),
    ("a field named password", {"db": {"host": "db-1", "password": _PASSWORD}}),
    ("a URL with a password", {"dsn": f"postgresql://app:{_PASSWORD}@db-1/shop"}),
)


def run(report: DemoReport) -> None:
    """Try to append events with secrets."""
    report.start_step(
        "the guard: secrets are refused",
        "Proves: credentials are refused with rule and path, and no message contains the value.",
    )
    before = report.log.head()
    table = make_demo_table("attempt", "code", "rule", "path")
    concealed = True
    refused = 0
    for name, payload in _ATTEMPTS:
        try:
            report.log.append([NewEvent("config.changed", payload)])
        except PiiPolicyViolation as error:
            refused += 1
            message = str(error.as_dict())
            concealed = concealed and _KEY_ID not in message and _PASSWORD not in message
            table.add_row(name, error.code, str(error.details["rule"]), str(error.details["path"]))
    report.print(table)
    report.check(
        f"{len(_ATTEMPTS)} attempts refused, nothing stored, no value revealed",
        concealed and refused == len(_ATTEMPTS) and report.log.head() == before,
    )
