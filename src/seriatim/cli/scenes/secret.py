"""Secrets on their way into the log, and the guard that names rule and path, never the value."""

from __future__ import annotations

from typing import Any

from seriatim.cli.scenes.stage import Stage, sheet
from seriatim.core.errors import PiiPolicyViolation
from seriatim.core.event import NewEvent

# Made up, and put together here so that no scanner takes this file for a leak.
_KEY_ID = "AKIA" + "Z7Q2M4XK9T3B6WPL"
_PASSWORD = "hunter" + "2-but-longer"
_ATTEMPTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a cloud key in a config", {"env": {"vars": ["REGION=eu", f"AWS_KEY={_KEY_ID}"]}}),
    ("a password under its name", {"db": {"host": "db-1", "password": _PASSWORD}}),
    ("a URL with a password", {"dsn": f"postgresql://app:{_PASSWORD}@db-1/shop"}),
)


def play(stage: Stage) -> None:
    """Try to append secrets."""
    stage.scene(
        "a refused secret: the guard stands before the log",
        "Proves: credentials are refused by rule and path; the value is in no message.",
    )
    before = stage.log.head()
    shown = sheet("attempt", "code", "rule", "path")
    silent = True
    refused = 0
    for what, payload in _ATTEMPTS:
        try:
            stage.log.append([NewEvent("config.changed", payload)])
        except PiiPolicyViolation as error:
            refused += 1
            told = str(error.as_dict())
            silent = silent and _KEY_ID not in told and _PASSWORD not in told
            shown.add_row(what, error.code, str(error.details["rule"]), str(error.details["path"]))
    stage.show(shown)
    stage.check(
        f"{len(_ATTEMPTS)} attempts refused, nothing stored, no value told",
        silent and refused == len(_ATTEMPTS) and stage.log.head() == before,
    )
