"""Terminal output of commands: ids are never wrapped, and payloads have space."""

import io

import pytest

import seriatim
from seriatim import NewEvent
from seriatim.cli.output import EventLines, Terminal, make_table

ID = "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0000"


def printed(width: int, *rows: tuple[str, ...]) -> str:
    """Return a table as a terminal of a width gets it."""
    out = io.StringIO()
    made = make_table("position", "handler", "event", "error", right=("position",))
    for row in rows:
        made.add_row(*row)
    Terminal(file=out, force_terminal=True, width=width, color_system=None).print(made)
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_ids_never_break(width: int) -> None:
    """A4: at any width, ids and other values stay on one line; only free text is wrapped."""
    text = printed(width, ("1,000", "mailer", ID, "ValueError: " + "no mail server " * 20))

    assert ID in text
    assert "mailer" in text
    assert "1,000" in text
    longest = max(map(len, text.splitlines()))
    assert longest <= max(width, len(f"event: {ID}"))


def test_a_pipe_has_no_width() -> None:
    """A4: output that is no terminal has lines of any length."""
    out = io.StringIO()
    made = make_table("event", "error")
    made.add_row(ID, "x" * 500)
    Terminal(file=out).print(made)

    assert any(ID in line and "x" * 500 in line for line in out.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_events_show_a_useful_part_of_the_payload(width: int) -> None:
    """A1: position, type, stream and actor are whole, the payload has thirty columns or more."""
    out = io.StringIO()
    lines = EventLines(Terminal(file=out, force_terminal=True, width=width, color_system=None))
    with seriatim.open("memory:") as log:
        event = NewEvent(
            "seat.reserved",
            {"text": "x" * 400},
            stream=("show", ID),
            actor_type="user",
            actor_id="ada",
        )
        [record] = log.append([event]).records
    lines.print_event(record)

    text = out.getvalue()
    assert f"show {ID} #1" in text
    assert "user ada" in text
    assert '{"text":"' + "x" * 20 in text
    assert "…" in text
    assert all(len(splitline) <= width for splitline in text.splitlines() if "xxx" in splitline)
