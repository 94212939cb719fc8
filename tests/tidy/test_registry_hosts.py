"""No committed file names the host of a package registry; installers are configured elsewhere."""

import re
from pathlib import Path

import pytest

from tests.tidy.source_modules import ROOT, committed_files

# In parts, so that this file does not contain the names itself.
REGISTRIES = [
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("yarnpkg", "com"),
    ("maven", "org"),
    ("maven", "apache", "org"),
    ("sonatype", "org"),
    ("crates", "io"),
    ("golang", "org"),
    ("deb", "debian", "org"),
    ("security", "debian", "org"),
    ("archive", "ubuntu", "com"),
    ("rubygems", "org"),
    ("anaconda", "org"),
    ("conda", "anaconda", "org"),
]
HOSTS = re.compile("|".join(re.escape(".".join(parts)) for parts in REGISTRIES), re.IGNORECASE)
LOCKS = sorted(ROOT.glob("requirements*.lock"))


def test_no_registry_is_named() -> None:
    """No file to be committed names a package registry's host."""
    found = []
    for path in committed_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if hit := HOSTS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {hit.group()}")

    assert found == [], "name the package, not the host:\n" + "\n".join(found)


def test_pattern_finds_hosts() -> None:
    """The pattern is alive: it finds a host inside an address."""
    assert HOSTS.search("see https://files." + "python" + "hosted.org/packages/x")
    assert not HOSTS.search("pip install msgspec")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_has_hashes_and_no_places(lock: Path) -> None:
    """A lock holds pins and hashes; no address, no index, no path of one machine."""
    text = lock.read_text(encoding="utf-8")
    pins = re.findall(r"^([a-z0-9][^\s=]*)==", text, re.MULTILINE)
    unhashed = re.findall(r"^\S+==[^\\\n]*$", text, re.MULTILINE)

    assert len(pins) > 10
    assert unhashed == []
    assert "://" not in text  # a package may have http in its name
    assert "://" not in text
    assert not re.search(r"^(-|\S+ @ )|index-url|find-links|(?<!\S)/", text, re.MULTILINE)
