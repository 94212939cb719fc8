"""The client's settings in the words of Spark's own client, which is Java's."""

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
_AUTHORITY = "ssl.ca.location"  # a file in PEM form, as both clients read it


def java_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the Java client; what only a producer needs is left out.

    Those that begin with `java.` are for it alone, and go there as they are.
    """
    made = {name: value for name, value in given.items() if name in _SAME}
    if _AUTHORITY in given:
        made |= {"ssl.truststore.location": given[_AUTHORITY], "ssl.truststore.type": "PEM"}
    mechanism = next((given[name] for name in _MECHANISMS if name in given), None)
    if mechanism is not None:
        made |= _login(mechanism, given)
    made |= {
        name.removeprefix("java."): value
        for name, value in given.items()
        if name.startswith("java.")
    }
    return made


def own_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for librdkafka: all but those of the Java client."""
    return {name: value for name, value in given.items() if not name.startswith("java.")}


def _login(mechanism: str, given: Mapping[str, str]) -> dict[str, str]:
    made = {"sasl.mechanism": mechanism}
    if mechanism not in _MODULES or "java.sasl.jaas.config" in given:
        return made
    user, password = given.get("sasl.username"), given.get("sasl.password")
    if user is None or password is None:
        msg = f"{mechanism} needs sasl.username and sasl.password"
        raise InvalidArgument(msg, details={"argument": "kafka"})
    login = f"username={_quoted(user)} password={_quoted(password)}"
    return made | {"sasl.jaas.config": f"{_MODULES[mechanism]} required {login};"}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
