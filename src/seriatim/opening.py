"""Opening a log by its address, and the log with every profile on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from seriatim.access.store import PURPOSE as ACCESS
from seriatim.access.store import Access
from seriatim.client.http import Http
from seriatim.client.log import Remote
from seriatim.client.store import HttpStore
from seriatim.config import Settings, default_url, mismatch_mode, service_token
from seriatim.config.delivery import Registering, numbered_by, registering
from seriatim.core.errors import BackendFailure, Forbidden, InvalidArgument, NotFound
from seriatim.core.event import DEFAULT_TENANT, AppendResult, StreamRef
from seriatim.core.guard import BUILT_IN, DEFAULT, Guard
from seriatim.core.ids import hash_key
from seriatim.core.query import Query
from seriatim.core.tenants import EVERY_TENANT
from seriatim.delivery.acts import OLDEST_TABLE
from seriatim.delivery.acts import PURPOSE as REGISTRY
from seriatim.delivery.origin import LogOrigin
from seriatim.delivery.registry import Registry
from seriatim.delivery.unguarded import unguarded
from seriatim.log.aio import AsyncLog
from seriatim.log.base import BaseLog
from seriatim.log.deciding import Decider, decide_and_append
from seriatim.log.projections import Places
from seriatim.profiles.aggregates import Aggregates
from seriatim.profiles.facts import Facts
from seriatim.profiles.traces import Traces
from seriatim.store.database_url import check_postgres_url, split_options, with_options
from seriatim.store.engine import Engine, Purpose
from seriatim.store.memory import MemoryStore
from seriatim.store.port import Finding, Store
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import PURPOSE as READ_MODEL
from seriatim.store.sqlite.engine import SqliteEngine
from seriatim.store.sqlite.store import SqliteStore

_PLAIN_MAX = 16
_SCHEMA_MAX = 41  # what a log's own schema may have


_SERVICES = ("http:", "https:")
# Of libpq: password, sslpassword, passfile, sslkey, scram_client_key, oauth_client_secret …
_SECRET_OPTIONS = ("pass", "key", "secret", "token")


class Log(BaseLog):
    """An open log: its own acts, the awaited ones, and the three profiles."""

    @property
    def aio(self) -> AsyncLog:
        """The same log for asyncio."""
        return AsyncLog(self)

    @property
    def traces(self) -> Traces:
        """The log in the vocabulary of decision traces."""
        return Traces(self)

    @property
    def facts(self) -> Facts:
        """The log in the vocabulary of facts and command contexts."""
        return Facts(self)

    @property
    def aggregates(self) -> Aggregates:
        """The log in the vocabulary of aggregates and organisations."""
        return Aggregates(self)

    def decide(
        self, context: StreamRef | Query, decider: Decider, **options: Any
    ) -> AppendResult | None:
        """Load a stream or a context, decide, append; on a conflict load again, bounded.

        Options: `attempts` (10), and `idempotency_key` (with the events' `producer_id`) or
        `command`, under which a retry returns the first receipt without running the decider.
        """
        return decide_and_append(self, context, decider, **options)


class RemoteLog(Remote, Log):
    """A log in a service: the same acts, with as few round trips as each needs."""


def default_settings() -> Settings:
    """Return how a log behaves unless told otherwise, by the environment at most."""
    return Settings(on_id_mismatch=mismatch_mode(), numbered_by=numbered_by())


def open_log(  # noqa: PLR0913 - where a log is, and how it is used
    url: str | None = None,
    *,
    tenant_id: str | None = None,
    guard: str | Guard = DEFAULT,
    settings: Settings | None = None,
    create: bool = True,
    token: str | None = None,
    verify: str | bool = True,
) -> Log:
    """Open `memory:`, `sqlite:///file`, `postgresql://…` or the `https://…` of a service.

    Without a URL, $SERIATIM_URL. A log that is not there yet is made, unless `create` is false.
    A service asks for a token ($SERIATIM_TOKEN, unless given), which says whose events there are;
    `verify` names the file of the certificates that are trusted.
    """
    address = url or default_url()
    if address is None:
        msg = "no log was named: pass a URL such as sqlite:///app.db, or set SERIATIM_URL"
        raise InvalidArgument(msg, details={"argument": "url"})
    known = settings or default_settings()
    if address.startswith(_SERVICES):
        return _open_remote(address, known, tenant_id, _guard(guard), token, verify)
    if token is not None:
        msg = "a token is for a service: this log is opened by its own address"
        raise InvalidArgument(msg, details={"argument": "token"})
    store = open_store(address, known, create=create)
    try:
        return Log(
            store,
            settings=known,
            guard=_guard(guard),
            tenant_id=DEFAULT_TENANT if tenant_id is None else tenant_id,
            places=_places(address),
        )
    except BaseException:
        store.close()
        raise


def _open_remote(  # noqa: PLR0913 - the arguments of open_log
    url: str,
    settings: Settings,
    tenant_id: str | None,
    guard: Guard,
    token: str | None,
    verify: str | bool,
) -> RemoteLog:
    store = HttpStore(
        Http(
            url,
            token=token or service_token(),
            timeout_s=settings.timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
            verify=verify,
        )
    )
    try:
        whose = store.tenant() if tenant_id is None else tenant_id
        with suppress(Forbidden):  # a retry of ours is told from a replay by the head
            store.head()
        places = Places(find_read_model, None)
        return RemoteLog(store, settings=settings, guard=guard, tenant_id=whose, places=places)
    except BaseException:
        store.close()
        raise


def _guard(guard: str | Guard) -> Guard:
    if not isinstance(guard, str):
        return guard
    if guard not in BUILT_IN:
        msg = f"there is no guard {guard!r}: {', '.join(sorted(BUILT_IN))}"
        raise InvalidArgument(msg, details={"argument": "guard"})
    return BUILT_IN[guard]


def open_store(url: str, settings: Settings, *, create: bool = True) -> Store:
    """Open the backend that a URL names."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return MemoryStore(settings.read_timeout_s)
    if scheme == "sqlite":
        return SqliteStore(
            sqlite_path(url),
            create=create,
            busy_timeout_s=settings.lock_wait_s + settings.lock_hold_s,
            readers=settings.pool_size,
            read_timeout_s=settings.read_timeout_s,
        )
    if scheme in ("postgresql", "postgres"):
        found: Store = _postgres().PostgresStore(url, settings, create=create)
        return found
    if url.startswith(_SERVICES):
        msg = "this needs the log's own database, not a service: name it by its own URL"
        raise InvalidArgument(msg, details={"argument": "url"})
    msg = f"{scheme!r:.40} is no backend: use memory:, sqlite:///file, postgresql://… or https://…"
    raise InvalidArgument(msg, details={"argument": "url"})


def is_service(url: str) -> bool:
    """Tell whether a URL names a service, not a database."""
    return url.startswith(_SERVICES)


def examine(url: str, settings: Settings | None = None) -> Iterator[Finding]:
    """Say what is wrong with the database under a log, also when the log cannot be opened."""
    known = settings or Settings()
    if url.startswith(_SERVICES):
        with open_log(url, settings=known) as log:
            yield from log.store.doctor()
        return
    if url.startswith(("postgresql:", "postgres:")):
        yield from _postgres().examine(url, known)
        return
    try:
        store = open_store(url, known, create=False)
    except BackendFailure as error:
        cure = "run seriatim init" if "there is no log" in error.message else ""
        yield Finding("error", "opening", error.message, cure)
        return
    with closing(store):
        yield from store.doctor()


def open_read_model(url: str) -> ReadModel:
    """Open the place of read models that a URL names: a SQLite file or a Postgres schema."""
    engine = _engine(_read_model_at(url), READ_MODEL)
    try:
        return ReadModel(engine)
    except BaseException:
        engine.close()
        raise


def find_read_model(url: str) -> ReadModel | None:
    """Open the place of read models that a URL names, None unless it is there."""
    if url.startswith("sqlite:") and not Path(sqlite_path(url)).exists():
        return None
    engine = _engine(_read_model_at(url), READ_MODEL)
    found = None
    try:
        if engine.ready():
            found = ReadModel(engine)
        return found
    finally:
        if found is None:
            engine.close()


def open_registry(
    url: str,
    settings: Registering | None = None,
    *,
    log: BaseLog | None = None,
    create: bool = True,
) -> Registry:
    """Open the processed-event registry in a SQLite file or a Postgres schema.

    `log` is the log whose records are handled: a handler keeps to its identity, and stops with
    `log_identity_changed` after a restore instead of taking new events for old ones.
    One that is not there yet is made, unless `create` is false. Without settings the environment
    is asked; a registry that is switched off there claims everything and remembers nothing.
    """
    known = settings or registering()
    if not known.enabled and create:
        return unguarded(known)
    place = registry_url(url) if _names_no_schema(url) else url
    missing = f"there is no registry at {shown_url(place)}: seriatim work makes it"
    if not create and place.startswith("sqlite:") and not Path(sqlite_path(place)).exists():
        raise NotFound(missing)
    engine = _engine(place, REGISTRY)
    found = None
    try:
        if create or engine.ready(OLDEST_TABLE):
            found = Registry(engine, known, None if log is None else LogOrigin(log.store))
    finally:
        if found is None:
            engine.close()
    if found is None:
        raise NotFound(missing)
    return found


def open_access(url: str, *, create: bool = True) -> Access:
    """Open the tokens, quotas and answers that a URL names: beside a log, or at another place.

    What is not there yet is made, unless `create` is false.
    """
    place = access_url(url) if _names_no_schema(url) else url
    missing = NotFound(
        f"there are no tokens at {shown_url(place)}: seriatim token create makes one"
    )
    if not create and place.startswith("sqlite:") and not Path(sqlite_path(place)).exists():
        raise missing
    engine = _engine(place, ACCESS)
    found = None
    try:
        if create or engine.ready():
            found = Access(engine)
    finally:
        if found is None:
            engine.close()
    if found is None:
        raise missing
    return found


def shown_url(url: str) -> str:
    """Return an address without its password, nor where passwords and keys are."""
    place, asked, options = url.partition("?")
    scheme, slashes, rest = url.partition("://")
    authority, _, path = place.partition("://")[2].partition("/")
    if slashes and "@" in rest and ("@" not in authority or "@" in path):
        # Characters of a password that are not encoded: all before the last @ may be of it.
        return f"{scheme}://{authority.partition(':')[0]}:***@{rest.rpartition('@')[2]}"
    user, signed, hosts = authority.rpartition("@")
    if signed and ":" in user:
        place = place.replace(authority, f"{user.partition(':')[0]}:***@{hosts}", 1)
    return place + asked + "&".join(_shown_option(one) for one in options.split("&"))


def _shown_option(option: str) -> str:
    name, is_set, _ = option.partition("=")
    secret = any(word in unquote(name).lower() for word in _SECRET_OPTIONS)
    return f"{name}=***" if is_set and secret else option


def _engine(url: str, purpose: Purpose) -> Engine:
    if url.startswith("sqlite:"):
        return SqliteEngine(sqlite_path(url), purpose)
    if url.startswith(("postgresql:", "postgres:")):
        _postgres()
        from seriatim.store.postgres import connecting, engine  # noqa: PLC0415 - an extra

        return engine.PostgresEngine(connecting.parse_url(url, Settings()), purpose)
    msg = f"{purpose.what} lives in a database: sqlite:///file or postgresql://…"
    raise InvalidArgument(msg, details={"argument": purpose.option.lstrip("-")})


def _names_no_schema(url: str) -> bool:
    return not url.startswith("sqlite:") and "schema" not in split_options(url)[1]


def _places(url: str) -> Places:
    if url.startswith("memory:"):
        return Places(find_read_model, None)
    return Places(find_read_model, lambda tenant_id: read_model_url(url, tenant_id))


def read_model_url(url: str, tenant_id: str = DEFAULT_TENANT) -> str:
    """Return where a log's read models are unless told otherwise: beside it, each tenant apart."""
    return _beside(url, "read", tenant_id)


def registry_url(url: str) -> str:
    """Return where a log's registry is unless told otherwise: beside it, for all tenants."""
    return _beside(url, "delivery", DEFAULT_TENANT)


def access_url(url: str) -> str:
    """Return where a log's tokens and quotas are unless told otherwise: beside it."""
    return _beside(url, "service", DEFAULT_TENANT)


def _read_model_at(url: str) -> str:
    return read_model_url(url) if _names_no_schema(url) else url


def _beside(url: str, what: str, tenant_id: str) -> str:
    part = _plain_name(tenant_id)
    if url.startswith("sqlite:"):
        stem = urlsplit(url).path.removesuffix(".db")
        return f"sqlite://{stem}.{part}.{what}.db" if part else f"sqlite://{stem}.{what}.db"
    if url.startswith(("postgresql:", "postgres:")):
        check_postgres_url(url)
    base, options = split_options(url)
    schema = options.get("schema", "seriatim")
    made = f"{schema}_{what}_{part}" if part else f"{schema}_{what}"
    if len(made) > _SCHEMA_MAX:
        made = f"{schema[:_PLAIN_MAX]}_{what}_{hash_key(schema, tenant_id).hex()[: _PLAIN_MAX + 2]}"
    options["schema"] = made
    return with_options(base, options)


def _plain_name(tenant_id: str) -> str:
    if tenant_id == DEFAULT_TENANT:
        return ""
    if tenant_id == EVERY_TENANT:
        return "all"
    plain = tenant_id.isascii() and tenant_id.replace("_", "").isalnum() and tenant_id.islower()
    if plain and tenant_id != "all" and len(tenant_id) <= _PLAIN_MAX:
        return tenant_id
    return "t" + hash_key(tenant_id).hex()[:_PLAIN_MAX]


def absolute_url(url: str) -> str:
    """Return a URL that means the same in every folder: for processes that start elsewhere."""
    if not url.startswith("sqlite:"):
        return url
    return f"sqlite:///{quote(str(Path(sqlite_path(url)).absolute()))}"


def sqlite_path(url: str) -> str:
    """Return the path that a SQLite URL names."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path == "/":
        msg = "a SQLite log is named sqlite:///relative.db or sqlite:////absolute/path.db"
        raise InvalidArgument(msg, details={"argument": "url"})
    return path[1:]


def _postgres() -> ModuleType:
    try:
        from seriatim.store.postgres import store  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        msg = "a Postgres log needs its driver: pip install 'seriatim[postgres]'"
        raise BackendFailure(msg, retryable=False) from error
    return store
