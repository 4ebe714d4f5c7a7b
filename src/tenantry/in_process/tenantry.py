"""Authenticates the requests of an application on the service's database, in the application's
event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, Self

from tenantry.auth.admission import Admitted, AuthenticationParts, stop
from tenantry.auth.rejection_throttle import Throttle
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock, Timeouts, system_clock
from tenantry.db.database import Database
from tenantry.db.migrate import is_current, newest_revision, schema_revision
from tenantry.domain.errors import AuthUnavailableError, DatabaseUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.server.asgi_types import Scope, header_of
from tenantry.server.caching import CallerVary
from tenantry.settings import Settings, load_for_authentication, read_environment

_LONGEST_ADDRESS: Final = 64

logger = logging.getLogger(__name__)


class SchemaMismatchError(RuntimeError):
    """The database's schema is older than this release, or not tenantry's."""


class Credentials(NamedTuple):
    """How a request identifies its sender: the headers ``Authorization`` and ``X-Organization-Id``,
    its address, and the header for API keys.
    """

    authorization: bytes | None
    organization: bytes | None
    address: str | None
    api_key: bytes | None = None


class InProcessConfiguration:
    """The settings of in-process authentication, from the environment or from values."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock = system_clock,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._timeouts = timeouts
        self.finder: Final = settings.credentials
        """Finds the credential of a request."""
        self.vary: Final = CallerVary(self.finder.api_key_header)
        """Tells caches which headers say who the caller is."""

    @classmethod
    def from_environment(cls) -> Self:
        """Use the service's settings: the environment and a ``.env`` file. Raises
        `SettingsError`.
        """
        return cls(load_for_authentication(read_environment()))

    @classmethod
    def from_values(
        cls,
        values: Mapping[str, str],
        *,
        clock: Clock = system_clock,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> Self:
        """Use these variables and no others. Raises `SettingsError`."""
        return cls(load_for_authentication(values), clock=clock, timeouts=timeouts)


class AsgiAuthenticator(InProcessConfiguration):
    """Authenticates an application's requests while it is started, by ``async with tenantry`` or
    `lifespan`.
    """

    _running: tuple[Database, AuthenticationParts, AsyncExitStack] | None = None
    _schema_checked = False

    async def start(self) -> None:
        """Connect; requests get 503 while a dependency is away. Raises `SchemaMismatchError` for an
        older schema.
        """
        database = await self.connect()
        try:
            await self._check_schema(database)
        except DatabaseUnavailableError:
            logger.warning("the database is unreachable; the first request checks its schema")
        except BaseException:
            await self.stop()
            raise

    async def connect(self, throttle: Throttle | None = None) -> Database:
        """Start without a look at the database: the first request checks its schema.

        ``throttle`` delays rejections, by default as in the service.
        """
        if self._running is not None:
            raise RuntimeError("This AsgiAuthenticator has been started already.")
        settings = self._settings
        async with AsyncExitStack() as stack:
            http_client = await stack.enter_async_context(new_http_client())
            database = Database(
                settings.shared_database,
                settings.database_pool_size,
                settings.database_pooler_url,
                timeouts=self._timeouts,
            )
            await database.open()
            stack.push_async_callback(database.close)
            parts = AuthenticationParts(
                database,
                http_client,
                peppers=settings.peppers,
                oidc=settings.oidc,
                catalog=settings.catalog,
                clock=self._clock,
                throttle=throttle,
                credentials=self.finder,
                checks_url=settings.database_checks_url,
            )
            await stack.enter_async_context(parts.running())
            self._running = database, parts, stack.pop_all()
        return database

    async def stop(self) -> None:
        """Write pending data, and disconnect. While the database hangs, give up after the time
        limit of a request.
        """
        running = self._running
        self._running = None
        self._schema_checked = False
        if running is None:
            return
        closing = asyncio.create_task(running[2].aclose())
        await asyncio.wait([closing], timeout=self._timeouts.request)
        if closing.done():
            await closing
        else:
            logger.warning(
                "the connection to the database could not be closed in %s s", self._timeouts.request
            )
            await stop(closing)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """Run as the lifespan of an application: ``Starlette(lifespan=tenantry.lifespan)``."""
        async with self:
            yield

    def has_credential(self, scope: Scope) -> bool:
        """Whether an ASGI request has a header for a credential, be it an empty one."""
        return any(name in self.finder.header_names for name, _ in scope["headers"])

    async def admit(self, scope: Scope) -> Admitted:
        """Authenticate and count the request of an ASGI scope. Raises the service's refusals
        (`DomainError`).
        """
        return await self.authenticate(self.credentials_of(scope))

    def credentials_of(self, scope: Scope) -> Credentials:
        """Return the credentials of an ASGI request."""
        client = scope.get("client")
        header = partial(header_of, scope)
        return Credentials(
            header(b"authorization"),
            header(b"x-organization-id"),
            client_address(str(client[0]) if client else None),
            self.finder.read_key(header),
        )

    async def authenticate(self, credentials: Credentials) -> Admitted:
        """Authenticate and count a request. Raises the service's refusals (`DomainError`)."""
        if self._running is None:
            raise RuntimeError(
                "This AsgiAuthenticator has not been started: use its lifespan, or `async with`."
            )
        database, parts, _ = self._running
        try:
            async with asyncio.timeout(self._timeouts.request):
                if not self._schema_checked:
                    await self._check_schema(database)
                return await parts.admission.admit(*credentials)
        except TimeoutError as error:
            raise AuthUnavailableError(
                "The database does not answer. Try again shortly."
            ) from error
        except DatabaseUnavailableError as error:
            raise AuthUnavailableError(error.detail) from error
        except SchemaMismatchError as error:
            logger.error("rejecting all requests: %s", error)  # noqa: TRY400  # the traceback does not help
            raise AuthUnavailableError("The database is not ready.") from error

    async def _check_schema(self, database: Database) -> None:
        revision = await schema_revision(database)
        if not is_current(revision):
            missing = "has no schema of tenantry that this login may read"
            found = f"is at schema revision {revision}" if revision else missing
            raise SchemaMismatchError(
                f"the database {found}, and this release of tenantry needs {newest_revision()}: "
                "run `tenantry migrate` of the same release first"
            )
        self._schema_checked = True


def client_address(text: str | None) -> str | None:
    """Return what a server says of its client's address if that can be stored: a proxy's header may
    have any text.
    """
    if text and len(text) <= _LONGEST_ADDRESS and text.isprintable():
        return text
    return None
