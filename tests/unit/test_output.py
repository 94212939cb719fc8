"""Terminal output of commands: ids are not wrapped, and payloads have enough space."""

import io

import pytest

import seriatim
from seriatim import NewEvent
from seriatim.cli.output import EventLines, Terminal, make_table

ID = "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0000"


def render_table(width: int, *rows: tuple[str, ...]) -> str:
    """Return a table as printed to a terminal of a width."""
    out = io.StringIO()
    made = make_table("position", "handler", "event", "error", right=("position",))
    for row in rows:
        made.add_row(*row)
    Terminal(file=out, force_terminal=True, width=width, color_system=None).print(made)
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_ids_are_not_wrapped(width: int) -> None:
    """A4: at any width ids stay on one line; only free text is wrapped."""
    text = render_table(width, ("1,000", "mailer", ID, "ValueError: " + "no mail server " * 20))

    assert ID in text
    assert "mailer" in text
    assert "1,000" in text
    longest = max(map(len, text.splitlines()))
    assert longest <= max(width, len(f"event: {ID}"))


def test_piped_output_is_not_wrapped() -> None:
    """A4: output that is no terminal has lines of any length."""
    out = io.StringIO()
    made = make_table("event", "error")
    made.add_row(ID, "x" * 500)
    Terminal(file=out).print(made)

    assert any(ID in line and "x" * 500 in line for line in out.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_printed_events_contain_part_of_the_payload(width: int) -> None:
    """A1: type, stream and actor are printed whole, the payload up to the width."""
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
