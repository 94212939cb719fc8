"""Open logs, read models, registries and access stores by URL."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from urllib.parse import quote, unquote, urlsplit

from seriatim.access.store import ACCESS_PURPOSE as ACCESS
from seriatim.access.store import AccessStore
from seriatim.client.http_client import HttpClient
from seriatim.client.remote_log import RemoteBaseLog
from seriatim.client.store import HttpStore
from seriatim.config import Settings, default_url, mismatch_mode, service_token
from seriatim.config.delivery import RegistrySettings, load_numbering_mode, load_registry_settings
from seriatim.core.errors import BackendFailure, Forbidden, InvalidArgument, NotFound
from seriatim.core.event import DEFAULT_TENANT, AppendResult, StreamRef
from seriatim.core.guard import BUILT_IN_GUARDS, DEFAULT_GUARD, Guard
from seriatim.core.ids import hash_key
from seriatim.core.query import Query
from seriatim.core.request import Command
from seriatim.core.tenants import ALL_TENANTS
from seriatim.delivery.async_handlers import AsyncHandlers
from seriatim.delivery.disabled_registry import open_disabled_registry
from seriatim.delivery.entries import DeadLetterTarget
from seriatim.delivery.handlers import Handlers
from seriatim.delivery.log_origin import LogOrigin
from seriatim.delivery.registry import Registry
from seriatim.delivery.registry_database import OLDEST_TABLE
from seriatim.delivery.registry_database import REGISTRY_PURPOSE as REGISTRY
from seriatim.log.async_iteration import AsyncExecutor
from seriatim.log.async_log import BaseAsyncLog
from seriatim.log.base import BaseLog
from seriatim.log.decision import Decider, Decision, decide_and_append
from seriatim.log.projections import ReadModelConnections
from seriatim.profiles.aggregates import Aggregates
from seriatim.profiles.facts import Facts
from seriatim.profiles.traces import Traces
from seriatim.store.database_url import check_postgres_url, join_options, split_options
from seriatim.store.engine import Engine, EnginePurpose
from seriatim.store.memory import MemoryStore
from seriatim.store.port import Finding, Store
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import READ_MODEL_PURPOSE as READ_MODEL
from seriatim.store.sqlite.engine import SqliteEngine
from seriatim.store.sqlite.store import SqliteStore

_NAME_MAX = 16
_SCHEMA_MAX = 41  # the longest schema name that a log accepts
_SERVICE_SCHEMES = ("http:", "https:")
# Of libpq: password, sslpassword, passfile, sslkey, scram_client_key, oauth_client_secret …
_SECRET_OPTIONS = ("pass", "key", "secret", "token")


class AsyncLog(BaseAsyncLog):
    """An open log for asyncio, with its handlers.

    Example:
        async with seriatim.open("memory:").aio as orders:
            await orders.append([NewEvent("order.placed", {"id": 1})])
    """

    def __init__(
        self,
        log: Log,
        executor: AsyncExecutor = asyncio.to_thread,
        compute: AsyncExecutor | None = None,
    ) -> None:
        super().__init__(log, executor, compute)
        self._full_log = log

    @property
    def handlers(self) -> AsyncHandlers:
        """The handlers in the default registry; see `Log.handlers`."""
        return AsyncHandlers(self._full_log.handlers)

    def handlers_at(
        self,
        registry: str,
        settings: RegistrySettings | None = None,
        *,
        dead_letters: DeadLetterTarget | None = None,
    ) -> AsyncHandlers:
        """Return the handlers in the registry at a URL; see `Log.handlers_at`.

        Example:
            handlers = log.aio.handlers_at("sqlite:///registry.db")
        """
        return AsyncHandlers(
            self._full_log.handlers_at(registry, settings, dead_letters=dead_letters)
        )

    def for_tenant(self, tenant_id: str) -> AsyncLog:
        """Return this log for another tenant; see `Log.for_tenant`.

        Example:
            await log.aio.for_tenant("acme").append([NewEvent("order.placed", {"total": 12})])
        """
        return AsyncLog(self._full_log.for_tenant(tenant_id), self._execute, self._compute)


class Log(BaseLog):
    """An open log, with its asyncio interface, its handlers and the three profiles.

    Example:
        with seriatim.open("memory:") as orders:
            orders.append([NewEvent("order.placed", {"total": 12})])
            print([record.event_type for record in orders.read()])
    """

    def __init__(
        self,
        store: Store,
        *,
        settings: Settings | None = None,
        guard: Guard = DEFAULT_GUARD,
        tenant_id: str = DEFAULT_TENANT,
        read_models: ReadModelConnections | None = None,
        locate_registry: Callable[[], str] | None = None,
    ) -> None:
        """Create a log; users call `seriatim.open`.

        `locate_registry` returns the URL of the default registry, as `read_models` that of the
        default read model; None if there is none.
        """
        super().__init__(
            store, settings=settings, guard=guard, tenant_id=tenant_id, read_models=read_models
        )
        self._locate_registry = locate_registry

    @property
    def aio(self) -> AsyncLog:
        """The log for asyncio."""
        return AsyncLog(self)

    @property
    def handlers(self) -> Handlers:
        """The handlers in this log's default registry.

        Raises:
            InvalidArgument: The log has no default registry, because it is a service's.
        """
        if self._locate_registry is None:
            msg = "this log has no default registry: name one with log.handlers_at(url)"
            raise InvalidArgument(msg, details={"argument": "registry"})
        return self.handlers_at(self._locate_registry())

    def handlers_at(
        self,
        registry: str,
        settings: RegistrySettings | None = None,
        *,
        dead_letters: DeadLetterTarget | None = None,
    ) -> Handlers:
        """Return the handlers in the registry at a URL.

        Args:
            registry: The URL of the registry, or of a log whose default registry is meant; it is
                created if necessary.
            settings: Leases and the behaviour in an outage; by default those of the environment.
            dead_letters: Where dead letters are sent besides the registry.

        Example:
            handlers = log.handlers_at("sqlite:///registry.db", RegistrySettings(lease_s=60))
        """

        def open_it(registry_settings: RegistrySettings) -> Registry:
            return open_registry(registry, registry_settings, log=self)

        return Handlers(self, open_it, settings, dead_letters)

    @property
    def traces(self) -> Traces:
        """The profile of decision traces."""
        return Traces(self)

    @property
    def facts(self) -> Facts:
        """The profile of facts and command contexts."""
        return Facts(self)

    @property
    def aggregates(self) -> Aggregates:
        """The profile of aggregates and organisations."""
        return Aggregates(self)

    def decide(
        self,
        context: StreamRef | Query,
        decider: Decider,
        *,
        attempts: int = 10,
        idempotency_key: str | None = None,
        producer_id: str | None = None,
        command: Command | None = None,
    ) -> AppendResult | None:
        """Load a stream or context, append the events that `decider` returns, retry on conflicts.

        Args:
            context: The stream or query whose events the decider receives.
            decider: A pure function from records to new events; it may be called several times.
            attempts: How often to load, decide and append before a conflict is raised.
            idempotency_key: A key under which a retry returns the first receipt without calling
                the decider.
            producer_id: The producer of the decided events; keys are unique per producer.
            command: A command under which a retry returns the first receipt, with its response.

        Returns:
            The receipt, or None if the decider returns no events.

        Raises:
            ConditionalAppendConflict: The context changed at every attempt.
            EventSequenceInvalid: The stream changed at every attempt.
            InvalidArgument: An argument is malformed, or a decided event has another producer.

        Example:
            def book(records):
                return [] if records else [NewEvent("seat.booked", stream=("seat", "12A"))]

            log.decide(("seat", "12A"), book)
        """
        decision = Decision(
            context=context,
            attempts=attempts,
            idempotency_key=idempotency_key,
            producer_id=producer_id,
            command=command,
        )
        return decide_and_append(self, decision, decider)


class RemoteLog(RemoteBaseLog, Log):
    """A log that is accessed through a service, with few round trips per call."""


def default_settings() -> Settings:
    """Return the default settings, with the values of environment variables."""
    return Settings(on_id_mismatch=mismatch_mode(), numbered_by=load_numbering_mode())


def open_log(
    url: str | None = None,
    *,
    tenant_id: str | None = None,
    guard: str | Guard = DEFAULT_GUARD,
    settings: Settings | None = None,
    create: bool = True,
    token: str | None = None,
    verify: str | bool = True,
) -> Log:
    """Open a log.

    Args:
        url: `memory:`, `sqlite:///file`, `postgresql://…`, or the `https://…` of a service; by
            default the environment variable `SERIATIM_URL`.
        tenant_id: The tenant; by default `default`, or the token's tenant for a service.
        guard: The policy that refuses secrets and personal data, or its name.
        settings: Settings of the log; by default those of the environment.
        create: Whether to create a log that does not exist.
        token: The token for a service; by default the environment variable `SERIATIM_TOKEN`.
        verify: A file with trusted certificates for a service; False disables verification.

    Raises:
        InvalidArgument: The URL or another argument is malformed.
        BackendFailure: The log cannot be opened.

    Example:
        with seriatim.open("sqlite:///app.db") as log:
            log.append([NewEvent("order.placed", {"id": 1})])
    """
    log_url = url or default_url()
    if log_url is None:
        msg = "no log was named: pass a URL such as sqlite:///app.db, or set SERIATIM_URL"
        raise InvalidArgument(msg, details={"argument": "url"})
    log_settings = settings or default_settings()
    if log_url.startswith(_SERVICE_SCHEMES):
        return _open_remote(log_url, log_settings, tenant_id, _find_guard(guard), token, verify)
    if token is not None:
        msg = "token is only for a service (https://…): omit it for a log in a database"
        raise InvalidArgument(msg, details={"argument": "token"})
    store = open_store(log_url, log_settings, create=create)
    try:
        folder = _TemporaryFolder()
        return Log(
            store,
            settings=log_settings,
            guard=_find_guard(guard),
            tenant_id=DEFAULT_TENANT if tenant_id is None else tenant_id,
            read_models=_make_read_models(log_url, folder),
            locate_registry=lambda: registry_url(_locate_database(log_url, folder)),
        )
    except BaseException:
        store.close()
        raise


def _open_remote(
    url: str,
    settings: Settings,
    tenant_id: str | None,
    guard: Guard,
    token: str | None,
    verify: str | bool,
) -> RemoteLog:
    store = HttpStore(
        HttpClient(
            url,
            token=token or service_token(),
            timeout_s=settings.timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
            verify=verify,
        )
    )
    try:
        tenant = store.get_tenant() if tenant_id is None else tenant_id
        # The head distinguishes a retry of this process from a replay of an older append.
        with suppress(Forbidden):
            store.head()
        read_models = ReadModelConnections(find_read_model, None, open_read_model)
        return RemoteLog(
            store, settings=settings, guard=guard, tenant_id=tenant, read_models=read_models
        )
    except BaseException:
        store.close()
        raise


def _find_guard(guard: str | Guard) -> Guard:
    if not isinstance(guard, str):
        return guard
    if guard not in BUILT_IN_GUARDS:
        msg = f"there is no guard {guard!r}: choose from {', '.join(sorted(BUILT_IN_GUARDS))}"
        raise InvalidArgument(msg, details={"argument": "guard"})
    return BUILT_IN_GUARDS[guard]


def open_store(url: str, settings: Settings, *, create: bool = True) -> Store:
    """Open the store of a log by its URL.

    Raises:
        InvalidArgument: The URL is that of a service, or of no known backend.
        BackendFailure: The store cannot be opened, or does not exist and `create` is false.
    """
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
        store: Store = _import_postgres().PostgresStore(url, settings, create=create)
        return store
    if url.startswith(_SERVICE_SCHEMES):
        msg = "this needs direct access to the log's database: pass its URL, not the service's"
        raise InvalidArgument(msg, details={"argument": "url"})
    msg = (
        f"unknown backend {scheme!r:.40}: use memory:, sqlite:///file, postgresql://… or https://…"
    )
    raise InvalidArgument(msg, details={"argument": "url"})


def is_service(url: str) -> bool:
    """Return whether a URL is that of a service, not of a database."""
    return url.startswith(_SERVICE_SCHEMES)


def diagnose(url: str, settings: Settings | None = None) -> Iterator[Finding]:
    """Check the database of a log and yield findings, also if the log cannot be opened."""
    log_settings = settings or Settings()
    if url.startswith(_SERVICE_SCHEMES):
        with open_log(url, settings=log_settings) as log:
            yield from log.store.doctor()
        return
    if url.startswith(("postgresql:", "postgres:")):
        yield from _import_postgres().examine_database(url, log_settings)
        return
    try:
        store = open_store(url, log_settings, create=False)
    except BackendFailure as error:
        cure = "run seriatim init" if "there is no log" in error.message else ""
        yield Finding("error", "opening", error.message, cure)
        return
    with closing(store):
        yield from store.doctor()


def open_read_model(url: str) -> ReadModel:
    """Open a read model in a SQLite file or a Postgres schema, creating it if needed.

    For the URL of a log without a schema, its default read model is opened.
    """
    engine = _open_engine(_resolve_read_model_url(url), READ_MODEL)
    try:
        return ReadModel(engine)
    except BaseException:
        engine.close()
        raise


def find_read_model(url: str) -> ReadModel | None:
    """Open a read model, or return None if it does not exist; see `open_read_model`."""
    if _is_missing_file(url):
        return None
    engine = _open_engine(_resolve_read_model_url(url), READ_MODEL)
    read_model = None
    try:
        if engine.is_ready():
            read_model = ReadModel(engine)
        return read_model
    finally:
        if read_model is None:
            engine.close()


def open_registry(
    url: str,
    settings: RegistrySettings | None = None,
    *,
    log: BaseLog | None = None,
    create: bool = True,
) -> Registry:
    """Open the processed-event registry in a SQLite file or a Postgres schema.

    Args:
        url: The URL of the registry, or of a log whose default registry is meant.
        settings: Settings of the registry; by default those of the environment. A registry that
            is disabled there grants every claim and stores nothing.
        log: The log whose records are handled. Handlers are bound to its identity: after a
            restore they stop with `log_identity_changed` instead of mistaking new events for
            processed ones. The actions of operators are recorded in its journal.
        create: Whether to create a registry that does not exist.

    Raises:
        NotFound: The registry does not exist and `create` is false.

    Example:
        registry = seriatim.open_registry("sqlite:///app.db", log=log)
        print(registry.handlers())
        registry.close()
    """
    registry_settings = settings or load_registry_settings()
    if not registry_settings.enabled and create:
        return open_disabled_registry(registry_settings)
    resolved = registry_url(url) if _has_no_schema(url) else url
    missing = f"there is no registry at {redact_url(resolved)}: run seriatim work to create it"
    if not create and _is_missing_file(resolved):
        raise NotFound(missing)
    engine = _open_engine(resolved, REGISTRY)
    registry = None
    try:
        if create or engine.is_ready(OLDEST_TABLE):
            origin = None if log is None else LogOrigin(log.store)
            registry = Registry(engine, registry_settings, origin, log)
    finally:
        if registry is None:
            engine.close()
    if registry is None:
        raise NotFound(missing)
    return registry


def open_access(url: str, *, create: bool = True) -> AccessStore:
    """Open the access store: tokens, quotas and stored responses of a service.

    Args:
        url: The URL of the store, as returned by `access_url`; or the URL of a Postgres log.
        create: Whether to create a store that does not exist.

    Raises:
        NotFound: The store does not exist and `create` is false.

    Example:
        from seriatim.server import access_url, open_access

        access = open_access(access_url("sqlite:///app.db"))
        access.close()
    """
    resolved = access_url(url) if _has_no_schema(url) else url
    missing = NotFound(
        f"there are no tokens at {redact_url(resolved)}: run seriatim token create to create one"
    )
    if not create and _is_missing_file(resolved):
        raise missing
    engine = _open_engine(resolved, ACCESS)
    access = None
    try:
        if create or engine.is_ready():
            access = AccessStore(engine)
    finally:
        if access is None:
            engine.close()
    if access is None:
        raise missing
    return access


def redact_url(url: str) -> str:
    """Return a URL with passwords, keys and their files replaced by `***`."""
    base, question_mark, options = url.partition("?")
    scheme, slashes, after_scheme = url.partition("://")
    authority, _, path = base.partition("://")[2].partition("/")
    if slashes and "@" in after_scheme and ("@" not in authority or "@" in path):
        # The password has unencoded characters: everything before the last @ may belong to it.
        return f"{scheme}://{authority.partition(':')[0]}:***@{after_scheme.rpartition('@')[2]}"
    user, at_sign, hosts = authority.rpartition("@")
    if at_sign and ":" in user:
        base = base.replace(authority, f"{user.partition(':')[0]}:***@{hosts}", 1)
    return base + question_mark + "&".join(_redact_option(option) for option in options.split("&"))


def _redact_option(option: str) -> str:
    name, is_set, _ = option.partition("=")
    secret = any(word in unquote(name).lower() for word in _SECRET_OPTIONS)
    return f"{name}=***" if is_set and secret else option


def _is_missing_file(url: str) -> bool:
    """Return whether a SQLite file does not exist; opening it would create it."""
    return url.startswith("sqlite:") and not Path(sqlite_path(url)).exists()


def _open_engine(url: str, purpose: EnginePurpose) -> Engine:
    if url.startswith("sqlite:"):
        return SqliteEngine(sqlite_path(url), purpose)
    if url.startswith(("postgresql:", "postgres:")):
        _import_postgres()
        from seriatim.store.postgres import connection, engine

        return engine.PostgresEngine(connection.parse_url(url, Settings()), purpose)
    msg = f"{purpose.label} must be in a database: use sqlite:///file or postgresql://…"
    raise InvalidArgument(msg, details={"argument": purpose.target_option.lstrip("-")})


def _has_no_schema(url: str) -> bool:
    """Return whether a Postgres URL names no schema, so that it is the URL of a log."""
    return not url.startswith("sqlite:") and "schema" not in split_options(url)[1]


def _make_read_models(url: str, folder: _TemporaryFolder) -> ReadModelConnections:
    return ReadModelConnections(
        find_read_model,
        lambda tenant_id: read_model_url(_locate_database(url, folder), tenant_id),
        open_read_model,
    )


def _locate_database(url: str, folder: _TemporaryFolder) -> str:
    """Return the URL from which those of read models and registry are derived."""
    return folder.locate("log.db") if url.startswith("memory:") else url


class _TemporaryFolder:
    """A folder for the databases beside a log in memory; it is removed together with the log."""

    def __init__(self) -> None:
        self._path = ""

    def locate(self, name: str) -> str:
        """Return the SQLite URL of a file in the folder, which is created at the first call."""
        if not self._path:
            self._path = tempfile.mkdtemp(prefix="seriatim-")
            weakref.finalize(self, _remove_own_folder, self._path, os.getpid())
        return f"sqlite:///{quote(self._path)}/{name}"


def _remove_own_folder(path: str, process: int) -> None:
    if os.getpid() == process:  # a forked child must leave the folder of its parent alone
        shutil.rmtree(path, ignore_errors=True)


def read_model_url(url: str, tenant_id: str = DEFAULT_TENANT) -> str:
    """Return the default URL of a tenant's read model, derived from the log's URL."""
    return _derive_url(url, "read", tenant_id)


def registry_url(url: str) -> str:
    """Return the default URL of a log's registry, one for all tenants."""
    return _derive_url(url, "delivery", DEFAULT_TENANT)


def access_url(url: str) -> str:
    """Return the default URL of a log's access store.

    Args:
        url: The URL of the log.

    Example:
        print(seriatim.server.access_url("sqlite:///app.db"))
    """
    return _derive_url(url, "service", DEFAULT_TENANT)


def _resolve_read_model_url(url: str) -> str:
    return read_model_url(url) if _has_no_schema(url) else url


def _derive_url(url: str, suffix: str, tenant_id: str) -> str:
    """Return the URL of a sibling file, or of a sibling schema in the same database."""
    part = _tenant_part(tenant_id)
    if url.startswith("sqlite:"):
        stem = urlsplit(url).path.removesuffix(".db")
        return f"sqlite://{stem}.{part}.{suffix}.db" if part else f"sqlite://{stem}.{suffix}.db"
    if url.startswith(("postgresql:", "postgres:")):
        check_postgres_url(url)
    base, options = split_options(url)
    schema = options.get("schema", "seriatim")
    derived = f"{schema}_{suffix}_{part}" if part else f"{schema}_{suffix}"
    if len(derived) > _SCHEMA_MAX:
        digest = hash_key(schema, tenant_id).hex()[: _NAME_MAX + 2]
        derived = f"{schema[:_NAME_MAX]}_{suffix}_{digest}"
    options["schema"] = derived
    return join_options(base, options)


def _tenant_part(tenant_id: str) -> str:
    """Return the tenant's part of a derived name: its id if simple and short, else a hash."""
    if tenant_id == DEFAULT_TENANT:
        return ""
    if tenant_id == ALL_TENANTS:
        return "all"
    plain = tenant_id.isascii() and tenant_id.replace("_", "").isalnum() and tenant_id.islower()
    if plain and tenant_id != "all" and len(tenant_id) <= _NAME_MAX:
        return tenant_id
    return "t" + hash_key(tenant_id).hex()[:_NAME_MAX]


def absolute_url(url: str) -> str:
    """Return a URL that does not depend on the working directory, for other processes."""
    if not url.startswith("sqlite:"):
        return url
    return f"sqlite:///{quote(str(Path(sqlite_path(url)).absolute()))}"


def sqlite_path(url: str) -> str:
    """Return the file path of a SQLite URL; raises `InvalidArgument` if it is malformed."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path == "/":
        msg = "a SQLite URL is sqlite:///relative.db or sqlite:////absolute/path.db"
        raise InvalidArgument(msg, details={"argument": "url"})
    return path[1:]


def _import_postgres() -> ModuleType:
    try:
        from seriatim.store.postgres import store
    except ModuleNotFoundError as error:
        msg = "Postgres needs its driver: pip install 'seriatim[postgres]'"
        raise BackendFailure(msg, retryable=False) from error
    return store
