"""Templates and static files of the console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any

import jinja2
import markupsafe
import msgspec

from seriatim.api.http import HttpResponse

_PACKAGE = "seriatim.console"
_CONTENT_TYPES = {
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_IMMUTABLE = (b"cache-control", b"public, max-age=31536000, immutable")
_STEP = 1024  # from a unit of size to the next
_SHORT_CHARS = 80
_has_special = re.compile("[&<>'\"]").search
_DICT_NAMES = frozenset(dir(dict))


def escape(value: object) -> str:
    """Return a value as HTML text, like `markupsafe.escape`.

    `markupsafe` makes a new object for each value, which was half of the time of a list.
    """
    if type(value) is not str:
        return markupsafe.escape(value)
    if not _has_special(value):
        return value
    text = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&#34;").replace("'", "&#39;")


class _Template(jinja2.Template):
    """A template that escapes with the function of this module."""

    @classmethod
    def from_code(cls, *args: Any, **kwargs: Any) -> jinja2.Template:
        """Load a compiled template; its code calls the global name `escape` for each value."""
        template = super().from_code(*args, **kwargs)
        template.root_render_func.__globals__["escape"] = escape
        return template


class _Environment(jinja2.Environment):
    """An environment that looks up items of plain objects first.

    Jinja tries attributes first, and the failed attempts were a quarter of the time of a list.
    """

    template_class = _Template

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return the item or attribute of an object; methods of dict take precedence over items."""
        if type(obj) is dict and attribute in obj and attribute not in _DICT_NAMES:
            return obj[attribute]
        return super().getattr(obj, attribute)


class Renderer:
    """Render templates; all inserted values are escaped (N3)."""

    def __init__(self) -> None:
        self._assets = _load_assets()
        self._environment = _Environment(
            loader=jinja2.PackageLoader(_PACKAGE, "templates"),
            autoescape=True,
            auto_reload=False,  # it would look for changed files at each page
            undefined=jinja2.StrictUndefined,  # a misspelled name fails instead of being empty
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals["asset"] = self.asset_path
        self._environment.filters |= {
            "number": format_number,
            "seconds": format_seconds,
            "short": shorten,
            "json": format_json,
            "inline_json": format_inline_json,
        }

    def render(self, template: str, values: Mapping[str, Any]) -> bytes:
        """Render a template of the console."""
        return self._environment.get_template(template).render(values).encode()

    def asset_path(self, name: str) -> str:
        """Return the path of a static file; its digest lets browsers cache the file for good."""
        return f"/console/static/{self._assets[name][0]}/{name}"

    def asset(self, path: str) -> HttpResponse | None:
        """Return the response with a static file, None if there is none at this path."""
        digest, _, name = path.removeprefix("/static/").partition("/")
        entry = self._assets.get(name)
        if entry is None or entry[0] != digest:
            return None
        content_type = _CONTENT_TYPES[name.rpartition(".")[2]]
        return HttpResponse(200, entry[1], content_type, (_IMMUTABLE,))


def _load_assets() -> dict[str, tuple[str, bytes]]:
    assets = {}
    for entry in files(_PACKAGE).joinpath("static").iterdir():
        content = entry.read_bytes()
        assets[entry.name] = sha256(content).hexdigest()[:16], content
    return assets


def format_number(value: float) -> str:
    """Return a number with separators between thousands."""
    return f"{value:,}"


def format_bytes(size: int) -> str:
    """Return a size with a unit, in steps of 1024."""
    unit, value = "bytes", float(size)
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < _STEP:
            break
        unit, value = larger, value / _STEP
    return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"


def format_seconds(time: str) -> str:
    """Return an RFC 3339 time to the second, without its zone."""
    return f"{time[:10]} {time[11:19]}"


def shorten(text: object, chars: int = _SHORT_CHARS) -> str:
    """Return the beginning of a text, with an ellipsis if something is left out."""
    content = str(text)
    return content if len(content) <= chars else content[: chars - 1] + "…"


def format_json(value: Any) -> str:
    """Return a value as indented JSON, with exact integers."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def format_inline_json(value: Any, chars: int = 160) -> str:
    """Return the beginning of a value as JSON on one line."""
    return shorten(msgspec.json.encode(value).decode(), chars)
