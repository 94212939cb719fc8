"""Options of the source: applied as documented, or refused by name."""

import pytest

from seriatim.core.errors import SeriatimError
from seriatim.core.patterns import NameFilter
from seriatim.pipeline.scan.options import Interval, parse_source_options
from seriatim.pipeline.source.partition_reader import split_range


def test_option_names_ignore_case() -> None:
    """Option names are accepted in any case, since Spark passes them in lower case."""
    found = parse_source_options(
        {
            "url": "sqlite:///x.db",
            "startingposition": "7",
            "maxEventsPerBatch": "100",
            "types": "a.*, b",
            "streamtype": "x,y",
            "streamId": "a,b",
            "occurredafter": "1970-01-01T00:00:01Z",
            "WATERMARKS": "true",
        }
    )
    assert (found.starting_position, found.max_batch_events, found.watermarks) == (7, 100, True)
    assert found.scan.types == NameFilter(("b",), ("a.",))
    assert found.scan.stream_types == NameFilter(("x", "y"))
    assert found.scan.stream_ids == NameFilter(("a,b",))  # an id may contain a comma
    assert found.scan.occurred == Interval(1_000_000, None)


def test_a_list_may_be_json() -> None:
    """A list of types may be JSON, so that a type can contain a comma."""
    found = parse_source_options({"url": "sqlite:///x.db", "types": '["a,b", "c.*"]'})
    assert found.scan.types == NameFilter(("a,b",), ("c.",))
    for wrong in ("order*", "*.paid", "a.*.b"):
        with pytest.raises(SeriatimError, match="only at its end"):
            parse_source_options({"url": "sqlite:///x.db", "types": wrong})
    found = parse_source_options({"url": "sqlite:///x.db", "types": "[x"})
    assert found.scan.types == NameFilter(("[x",))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"colums": "position"}, "colums is not an option .* columns"),
        ({"columns": "position,nothing"}, "columns contains 'nothing'"),
        ({"tenant": "*"}, "tenant must name one tenant: . stands for all"),
        ({"columns": "position,position"}, "none twice"),
        ({"partitions": "0"}, "partitions must be a whole number of at least 1"),
        ({"partitions": "two"}, "partitions must be a whole number of at least 1"),
        ({"startingPosition": "-1"}, "startingPosition must be a position"),
        ({"endingPosition": "1.5"}, "endingPosition must be"),
        ({"occurredAfter": "yesterday"}, "occurredAfter must be an RFC 3339"),
        ({"payload": "xml"}, "payload must be json or variant"),
        ({"tenant": ""}, "tenant must not be empty"),
        ({"watermarks": "maybe"}, "watermarks must be true or false"),
        ({"url": ""}, "url is required"),
        ({"url": "memory:"}, "another process's memory"),
        ({"url": "postgresql://u:p@h/x?schema=a;b"}, "schema must be a plain name"),
        ({"maxEventsPerBatch": "0"}, "maxEventsPerBatch must be a whole number of at least 1"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, str], words: str) -> None:
    """L: the error names the option and its valid values."""
    with pytest.raises(SeriatimError, match=words):
        parse_source_options({"url": "sqlite:///x.db", **options})


def test_ranges_are_split_without_gap_or_overlap() -> None:
    """J1: any number of parts covers the range exactly."""
    for after, until, wanted in ((0, 0, None), (3, 4, 7), (5, 105, 3), (0, 1_000_001, None)):
        parts = split_range(after, until, wanted)
        covered = [position for part in parts for position in (part.after, part.until)]
        assert covered == sorted(covered)
        assert sum(part.until - part.after for part in parts) == until - after
        assert all(part.until > part.after for part in parts)
        if parts:
            assert (parts[0].after, parts[-1].until) == (after, until)
    assert len(split_range(0, 10_000)) == 1  # a live batch needs no second task
    assert len(split_range(0, 1_000_000)) >= 4
