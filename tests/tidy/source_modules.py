"""The parsed modules of the package, and the files that git would commit."""

import ast
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "seriatim"


@dataclass(frozen=True)
class Module:
    """A source file with its import name and syntax tree."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def display_path(self) -> str:
        """The path relative to the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def package(self) -> str:
        """The top-level package or module: ``core``, ``store``, ``config``, or ``__init__``."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    def is_within(self, *prefixes: str) -> bool:
        """Return whether this module is, or is inside, one of the named packages."""
        inner = self.name.removeprefix("seriatim").removeprefix(".")
        return any(inner == prefix or inner.startswith(f"{prefix}.") for prefix in prefixes)


@functools.cache
def parse_modules() -> tuple[Module, ...]:
    """Parse every module of the package."""
    return tuple(read_module(path) for path in sorted(PACKAGE.rglob("*.py")))


def read_module(path: Path) -> Module:
    """Parse one file."""
    parts = path.relative_to(SRC).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text(encoding="utf-8")
    return Module(path, name, text, ast.parse(text, filename=str(path)))


def list_imports(module: Module) -> list[tuple[int, str]]:
    """Return the line and full dotted name of every import in a module."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def committed_files() -> list[Path]:
    """Return the files git has or would add; all files below the root where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        check=False,
        capture_output=True,
        cwd=ROOT,
    )
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
        return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    inside = (path for path in ROOT.rglob("*") if path.is_file())
    return [path for path in inside if not path.relative_to(ROOT).parts[0].startswith(".venv")]


def _base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    up = node.level - (1 if module.path.name == "__init__.py" else 0)
    parts = parts[: len(parts) - up]
    return ".".join([*parts, *([node.module] if node.module else [])])
