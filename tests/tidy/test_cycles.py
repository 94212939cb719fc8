"""Packages and sub-packages do not import each other in a circle."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.tidy.source_modules import Module, list_imports, parse_modules

Imports = dict[str, set[str]]


def package_of(name: str, modules: dict[str, Module]) -> str:
    """Return the package of a module: itself for a package, else the one that contains it."""
    is_package = modules[name].path.name == "__init__.py"
    return name if is_package else name.rpartition(".")[0]


def build_imports(found: Iterable[Module]) -> Imports:
    """Return the packages that each package imports; the root, which composes them, is left out.

    The modules directly in a package with sub-packages count as a package of their own, so they
    may not import what imports them.
    """
    modules = {module.name: module for module in found}
    imports: Imports = defaultdict(set)
    for module in modules.values():
        for _, imported in list_imports(module):
            target = imported if imported in modules else imported.rpartition(".")[0]
            if target not in modules:
                continue
            source, other = package_of(module.name, modules), package_of(target, modules)
            if source != other and "seriatim" not in (source, other):
                imports[source].add(other)
    return imports


def find_cycles(imports: Imports) -> list[str]:
    """Return the pairs of packages that import each other, directly or through others."""
    return sorted(
        f"{source} imports {target}, which imports it"
        for source in list(imports)
        for target in imports[source]
        if source in reachable(imports, target)
    )


def reachable(imports: Imports, start: str) -> set[str]:
    """Return the packages that a package imports, directly or through others."""
    found: set[str] = set()
    pending = [start]
    while pending:
        for target in imports.get(pending.pop(), set()) - found:
            found.add(target)
            pending.append(target)
    return found


def make_module(name: str, text: str, *, is_package: bool = False) -> Module:
    """Return a module made from text."""
    path = Path(*name.split("."), "__init__.py") if is_package else Path(*name.split("."))
    return Module(path, name, text, ast.parse(text))


def test_no_packages_import_each_other() -> None:
    """Each package can be read, tested and loaded after the packages that it imports."""
    assert find_cycles(build_imports(parse_modules())) == []


def test_a_cycle_is_found() -> None:
    """A cycle through a third package, and one between a package and its sub-package, are found."""
    modules = [
        make_module("seriatim.a.one", "from seriatim.b.two import f"),
        make_module("seriatim.b.two", "from seriatim.c.three import f"),
        make_module("seriatim.c.three", "def f():\n    from seriatim.a import one"),
        make_module("seriatim.a", "", is_package=True),
        make_module("seriatim.d", "", is_package=True),
        make_module("seriatim.d.root", "from seriatim.d.inner.part import f"),
        make_module("seriatim.d.inner.part", "from seriatim.d.root import g"),
    ]

    cycles = find_cycles(build_imports(modules))

    assert len(cycles) == 5
    assert cycles[-1] == "seriatim.d.inner imports seriatim.d, which imports it"
