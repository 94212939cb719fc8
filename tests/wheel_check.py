"""Run by `make wheel-check` in an empty environment: the bare wheel appends and reads."""

import importlib.metadata
import sys
import tempfile
from pathlib import Path

import seriatim
from seriatim import Filter, NewEvent, Query


def check(url: str) -> None:
    """Append one event and find it again."""
    log = seriatim.open(url)
    try:
        log.append([NewEvent("seat.reserved", {"seat": "12A"}, stream=("show", "s-1"))])
        found = log.query(Query([Filter(types=["seat.reserved"])])).records
    finally:
        log.close()
    assert [record.payload for record in found] == [{"seat": "12A"}], found
    sys.stdout.write(f"   {url.partition(':')[0]}: one event appended and read\n")


def main() -> None:
    """Check that the installed wheel is used, is complete and works."""
    package = Path(seriatim.__file__).parent
    assert "site-packages" in package.parts, f"not the installed wheel: {package}"
    assert (package / "py.typed").exists()
    assert list(package.rglob("*.sql")), "the SQL files are not in the wheel"
    [plugin] = importlib.metadata.entry_points(group="pytest11")
    assert (package.parent / f"{plugin.value}.py").exists(), "the pytest plugin is not in the wheel"
    names = sorted(dist.metadata["Name"] for dist in importlib.metadata.distributions())
    assert names == ["msgspec", "seriatim"], names
    check("memory:")
    with tempfile.TemporaryDirectory() as folder:
        check(f"sqlite:///{folder}/log.db")


if __name__ == "__main__":
    main()
