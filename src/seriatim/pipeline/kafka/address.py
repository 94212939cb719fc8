"""Where Kafka is: servers, a template of topics, and settings that pass through to the client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from string import Formatter
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.pipeline.kafka.java import own_settings

DEFAULT_TOPIC = "seriatim"
_FIELDS = {"tenant", "stream_type"}
_PLAIN = re.compile(r"[A-Za-z0-9._-]*")
_ESCAPED = re.compile(rb"[^A-Za-z0-9-]")
_TOPIC_MAX = 249
_DIGEST = 16
_ANY_NAME = "[A-Za-z0-9_-]+"  # what `escaped` makes of a name
_NO_STREAM = "_"  # no name becomes this: an underscore is always followed by two digits
_SECRET = re.compile(r"password|secret|\.pem$|\.key$|oauthbearer\.config|token", re.IGNORECASE)


class Target(msgspec.Struct, frozen=True):
    """A Kafka cluster, and which topic an event goes to."""

    servers: str
    template: str = DEFAULT_TOPIC
    settings: Mapping[str, str] = {}

    def __str__(self) -> str:
        return f"kafka://{self.servers}/{self.template}"

    def __repr__(self) -> str:
        return str(self)  # without the passwords among its settings

    @property
    def client(self) -> dict[str, str]:
        """The settings of a client."""
        return {**own_settings(self.settings), "bootstrap.servers": self.servers}

    @property
    def one_topic(self) -> str | None:
        """The topic that all events go to, None if they go to several."""
        return None if _names(self.template) else self.template

    def topic(self, tenant_id: str, stream_type: str | None) -> str:
        """Return the topic of an event; no two tenants or types ever share one by their names."""
        if self.template == DEFAULT_TOPIC:
            return self.template
        made = self.template.format(
            tenant=escaped(tenant_id),
            stream_type=_NO_STREAM if stream_type is None else escaped(stream_type),
        )
        if len(made) <= _TOPIC_MAX:
            return made
        return f"{made[: _TOPIC_MAX - _DIGEST - 1]}.{sha256(made.encode()).hexdigest()[:_DIGEST]}"

    def may_be(self, topic: str, tenant_id: str | None) -> bool:
        """Tell whether a topic's name follows the template, for one tenant or any."""
        tenant = _ANY_NAME if tenant_id is None else re.escape(escaped(tenant_id))
        holes = {"tenant": tenant, "stream_type": _ANY_NAME}
        pattern = "".join(
            re.escape(text) + ("" if name is None else f"(?:{holes[name]})")
            for text, name, _, _ in Formatter().parse(self.template)
        )
        return re.fullmatch(pattern, topic) is not None


def parse_target(url: str, settings: Mapping[str, str] | None = None) -> Target:
    """Read `kafka://host:port,host:port/topic?client.setting=value`.

    The topic may hold `{tenant}` and `{stream_type}`. Secrets belong into the settings, not into
    an address, which is shown and kept.
    """
    parts = urlsplit(url)
    if parts.scheme != "kafka" or not parts.netloc or "@" in parts.netloc:
        raise _bad("a Kafka target is named kafka://host:port/topic; secrets go into the settings")
    template = unquote(parts.path.strip("/")) or DEFAULT_TOPIC
    try:
        names = _names(template)
        plain = "".join(text for text, *_ in Formatter().parse(template))
    except ValueError:
        raise _bad(f"the topic {template!r:.80} cannot be understood") from None
    if names - _FIELDS:
        raise _bad("a topic may hold {tenant} and {stream_type}, nothing else in braces")
    if not _PLAIN.fullmatch(plain) or template in (".", "..") or len(template) > _TOPIC_MAX:
        raise _bad(f"a topic has letters, digits, . _ and -, at most {_TOPIC_MAX}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if _SECRET.search(name):
            raise _bad(f"{name} is a secret: give it among the settings, not in the address")
    return Target(parts.netloc, template, {**options, **(settings or {})})


def escaped(name: str) -> str:
    """Write a name in the letters of a topic, so that different names stay different."""
    return _ESCAPED.sub(lambda found: b"_%02x" % found[0][0], name.encode()).decode()


def _names(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def _bad(problem: str) -> InvalidArgument:
    return InvalidArgument(problem, details={"argument": "to"})
