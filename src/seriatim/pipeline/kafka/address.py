"""Kafka targets: servers, a topic template and client settings, parsed from a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from string import Formatter
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from seriatim.core.errors import InvalidArgument

_SAME = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "security.protocol",
        "ssl.endpoint.identification.algorithm",
        "fetch.min.bytes",
        "fetch.max.bytes",
        "max.partition.fetch.bytes",
        "session.timeout.ms",
        "metadata.max.age.ms",
        "isolation.level",
    }
)
_MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_CA_FILE = "ssl.ca.location"  # a PEM file, which both clients can read


def java_settings(librdkafka: Mapping[str, str]) -> dict[str, str]:
    """Translate librdkafka settings for the Java client, which Spark uses to consume.

    Settings that only a producer needs are omitted. Settings with the prefix `java.` are passed to
    the Java client without the prefix.

    Raises:
        InvalidArgument: A SASL mechanism lacks user name or password.

    """
    settings = {name: value for name, value in librdkafka.items() if name in _SAME}
    if _CA_FILE in librdkafka:
        settings |= {"ssl.truststore.location": librdkafka[_CA_FILE], "ssl.truststore.type": "PEM"}
    mechanism = next((librdkafka[name] for name in _MECHANISMS if name in librdkafka), None)
    if mechanism is not None:
        settings |= _login_settings(mechanism, librdkafka)
    settings |= {
        name.removeprefix("java."): value
        for name, value in librdkafka.items()
        if name.startswith("java.")
    }
    return settings


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for librdkafka: all but those with the prefix `java.`."""
    return {name: value for name, value in settings.items() if not name.startswith("java.")}


def _login_settings(mechanism: str, librdkafka: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a SASL login, with the JAAS configuration that Java requires."""
    settings = {"sasl.mechanism": mechanism}
    if mechanism not in _MODULES or "java.sasl.jaas.config" in librdkafka:
        return settings
    user, password = librdkafka.get("sasl.username"), librdkafka.get("sasl.password")
    if user is None or password is None:
        msg = f"the SASL mechanism {mechanism} requires sasl.username and sasl.password"
        raise InvalidArgument(msg, details={"argument": "kafka"})
    login = f"username={_quote(user)} password={_quote(password)}"
    return settings | {"sasl.jaas.config": f"{_MODULES[mechanism]} required {login};"}


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


DEFAULT_TOPIC = "seriatim"
_FIELDS = {"tenant", "stream_type"}
_PLAIN = re.compile(r"[A-Za-z0-9._-]*")
_ESCAPED = re.compile(rb"[^A-Za-z0-9-]")
_TOPIC_MAX = 249
_DIGEST = 16
_ANY_NAME = "[A-Za-z0-9_-]+"  # every result of `escape_name`
_NO_STREAM = "_"  # no escaped name equals this: its underscores precede two hex digits
_SECRET = re.compile(r"password|secret|\.pem$|\.key$|oauthbearer\.config|token", re.IGNORECASE)


class Target(msgspec.Struct, frozen=True):
    """A Kafka cluster and the template of the topics that events go to.

    Attributes:
        servers: The bootstrap servers, `host:port` separated by commas.
        topic_template: The topic; it may contain `{tenant}` and `{stream_type}`.
        settings: Settings of the client, which may contain secrets.

    """

    servers: str
    topic_template: str = DEFAULT_TOPIC
    settings: Mapping[str, str] = {}

    def __str__(self) -> str:
        return f"kafka://{self.servers}/{self.topic_template}"

    def __repr__(self) -> str:
        return str(self)  # the settings may contain passwords

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a librdkafka client."""
        return {**librdkafka_settings(self.settings), "bootstrap.servers": self.servers}

    @property
    def single_topic(self) -> str | None:
        """The topic of all events, or None if the template has fields."""
        return None if _field_names(self.topic_template) else self.topic_template

    def topic_for(self, tenant_id: str, stream_type: str | None) -> str:
        """Return the topic of an event; different tenants or stream types never share a field."""
        if self.topic_template == DEFAULT_TOPIC:
            return self.topic_template
        topic = self.topic_template.format(
            tenant=escape_name(tenant_id),
            stream_type=_NO_STREAM if stream_type is None else escape_name(stream_type),
        )
        if len(topic) <= _TOPIC_MAX:
            return topic
        # Kafka limits the length of names: the digest keeps shortened names distinct.
        return f"{topic[: _TOPIC_MAX - _DIGEST - 1]}.{sha256(topic.encode()).hexdigest()[:_DIGEST]}"

    def matches_topic(self, topic: str, tenant_id: str | None) -> bool:
        """Return whether a topic name matches the template, for one tenant or (None) for any."""
        tenant = _ANY_NAME if tenant_id is None else re.escape(escape_name(tenant_id))
        patterns = {"tenant": tenant, "stream_type": _ANY_NAME}
        pattern = "".join(
            re.escape(text) + ("" if name is None else f"(?:{patterns[name]})")
            for text, name, _, _ in Formatter().parse(self.topic_template)
        )
        return re.fullmatch(pattern, topic) is not None


def parse_target(url: str, settings: Mapping[str, str] | None = None) -> Target:
    """Parse `kafka://host:port,host:port/topic?client.setting=value`.

    Args:
        url: The address. The topic may contain `{tenant}` and `{stream_type}`.
        settings: Further settings of the client. Secrets belong here, as the address is displayed
            and stored.

    Raises:
        InvalidArgument: The address is malformed or contains a secret.

    Example:
        target = parse_target("kafka://broker:9092/orders.{tenant}", {"sasl.password": password})

    """
    parts = urlsplit(url)
    if parts.scheme != "kafka" or not parts.netloc or "@" in parts.netloc:
        raise _invalid(
            "a Kafka target has the form kafka://host:port/topic; pass credentials as settings"
        )
    template = unquote(parts.path.strip("/")) or DEFAULT_TOPIC
    try:
        names = _field_names(template)
        plain = "".join(text for text, *_ in Formatter().parse(template))
    except ValueError:
        raise _invalid(f"the topic template {template!r:.80} has unbalanced braces") from None
    if names - _FIELDS:
        raise _invalid(
            f"the topic template {template!r:.80} may contain only the fields {{tenant}} and "
            "{stream_type}"
        )
    if not _PLAIN.fullmatch(plain) or template in (".", "..") or len(template) > _TOPIC_MAX:
        raise _invalid(
            f"the topic {template!r:.80} must consist of at most {_TOPIC_MAX} letters, digits, "
            "dots, underscores and hyphens"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if _SECRET.search(name):
            raise _invalid(f"{name} is a secret: pass it as a setting, not in the address")
    return Target(parts.netloc, template, {**options, **(settings or {})})


def escape_name(name: str) -> str:
    """Escape a name with the characters of topic names, so that different names stay different."""
    return _ESCAPED.sub(lambda match: b"_%02x" % match[0][0], name.encode()).decode()


def _field_names(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def _invalid(problem: str) -> InvalidArgument:
    return InvalidArgument(problem, details={"argument": "to"})
