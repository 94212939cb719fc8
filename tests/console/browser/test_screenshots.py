"""The pictures of the console in the documentation."""

from __future__ import annotations

from pathlib import Path

from tests.docs.screenshots import ASSETS, BYTES_MAX, take_all

_PNG = b"\x89PNG\r\n\x1a\n"


def test_pictures_can_be_taken_again(tmp_path: Path) -> None:
    """N1: `make screenshots` takes the pictures of the documentation, within their size limit."""
    taken = take_all(tmp_path)

    assert {path.name for path in taken} == {path.name for path in ASSETS.glob("console-*.png")}
    for path in (*taken, *ASSETS.glob("console-*.png")):
        content = path.read_bytes()
        assert content.startswith(_PNG), path
        assert 5_000 < len(content) < BYTES_MAX, path
