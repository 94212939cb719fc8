"""Client settings: librdkafka names, and their translation for Spark's Java client."""

from __future__ import annotations

from collections.abc import Mapping

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


def java_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Translate librdkafka settings for the Java client, which Spark uses to consume.

    Settings that only a producer needs are omitted. Settings with the prefix `java.` are passed to
    the Java client without the prefix.

    Raises:
        InvalidArgument: A SASL mechanism lacks user name or password.

    """
    made = {name: value for name, value in given.items() if name in _SAME}
    if _CA_FILE in given:
        made |= {"ssl.truststore.location": given[_CA_FILE], "ssl.truststore.type": "PEM"}
    mechanism = next((given[name] for name in _MECHANISMS if name in given), None)
    if mechanism is not None:
        made |= _login_settings(mechanism, given)
    made |= {
        name.removeprefix("java."): value
        for name, value in given.items()
        if name.startswith("java.")
    }
    return made


def librdkafka_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for librdkafka: all but those with the prefix `java.`."""
    return {name: value for name, value in given.items() if not name.startswith("java.")}


def _login_settings(mechanism: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a SASL login, with the JAAS configuration that Java requires."""
    made = {"sasl.mechanism": mechanism}
    if mechanism not in _MODULES or "java.sasl.jaas.config" in given:
        return made
    user, password = given.get("sasl.username"), given.get("sasl.password")
    if user is None or password is None:
        msg = f"the SASL mechanism {mechanism} requires sasl.username and sasl.password"
        raise InvalidArgument(msg, details={"argument": "kafka"})
    login = f"username={_quote(user)} password={_quote(password)}"
    return made | {"sasl.jaas.config": f"{_MODULES[mechanism]} required {login};"}


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
