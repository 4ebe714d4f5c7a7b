"""Authenticates the requests of an application on the service's database, in the application's
event loop.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Self

import msgspec

from tenantry.auth.admission import Admitted, AuthenticationParts
from tenantry.auth.authentication import Rejected
from tenantry.auth.credentials import Sender
from tenantry.auth.entitlements import EntitlementService
from tenantry.auth.quota_events import QuotaEvents
from tenantry.auth.rejection_log import RejectionLog
from tenantry.auth.rejection_throttle import Throttle
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock, Timeouts, system_clock
from tenantry.db.background import BackgroundGroup, stop
from tenantry.db.database import Database
from tenantry.db.migrate import is_current, newest_revision, schema_revision
from tenantry.domain.entitlements import Consumed
from tenantry.domain.errors import AuthUnavailableError, DatabaseUnavailableError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.rejections import KnownSender, RefusedRequest
from tenantry.in_process.application_request import (
    ApplicationRequest,
    ClientAddress,
    asgi_request,
)
from tenantry.in_process.principals import AsgiPrincipal, Use, UsedKey
from tenantry.integrations.http_client import new_http_client
from tenantry.server.asgi_types import Scope
from tenantry.server.caching import CallerVary
from tenantry.settings import Settings, load_for_authentication, read_environment

_LONGEST_ADDRESS: Final = 64

logger = logging.getLogger(__name__)


class SchemaMismatchError(RuntimeError):
    """The database's schema is older than this release, or not tenantry's."""


class InProcessConnection(ABC):
    """An application's connection to the service's database, by settings of the environment or by
    values.
    """

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
        self.resource: Final = settings.protected_resource
        """What OAuth clients are told of the application."""
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

    def has_credential(self, request: ApplicationRequest) -> bool:
        """Whether a request has a header for a credential, be it an empty one."""
        return any(request.header(name) is not None for name in self.finder.header_names)

    def sender_of(
        self, request: ApplicationRequest, find_address: ClientAddress | None = None
    ) -> Sender:
        """Return the sender of a request, whose address ``find_address`` says, if it is given."""
        if find_address is None:
            return Sender(request.header, client_address(request.client))
        address = client_address(find_address(request.source))
        return Sender(request.header, address, is_told=True)

    @abstractmethod
    async def check(self, sender: Sender) -> Admitted | Rejected:
        """Authenticate and count a request, or return why it is rejected. Raises
        `AuthUnavailableError`.
        """

    @abstractmethod
    def record_rejection(self, sender: KnownSender, request: RefusedRequest) -> None:
        """Record a refused request for the tenant to see."""

    @abstractmethod
    def caller_of(self, principal: RequestPrincipal) -> RequestPrincipal:
        """Return a principal as the application gets it: it can consume."""

    async def authenticate(self, sender: Sender) -> Admitted:
        """Authenticate and count a request. Raises the service's refusals (`DomainError`)."""
        found = await self.check(sender)
        if isinstance(found, Rejected):
            raise found.error
        return msgspec.structs.replace(found, principal=self.caller_of(found.principal))


class Running(NamedTuple):
    """What an authenticator uses while it is started."""

    database: Database
    parts: AuthenticationParts
    entitlements: EntitlementService
    rejections: RejectionLog
    group: BackgroundGroup


class AsgiAuthenticator(InProcessConnection):
    """Authenticates an application's requests while it is started, by ``async with tenantry`` or
    `lifespan`.
    """

    _running: Running | None = None
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
        async with BackgroundGroup() as group:
            http_client = await group.enter_async_context(new_http_client())
            database = Database(
                settings.shared_database,
                settings.database_pool_size,
                settings.database_pooler_url,
                timeouts=self._timeouts,
            )
            await group.enter_async_context(database)
            tell_use = [QuotaEvents(settings.catalog).publish]
            parts = AuthenticationParts(
                database,
                http_client,
                peppers=settings.peppers,
                oidc=settings.oidc,
                catalog=settings.catalog,
                clock=self._clock,
                throttle=throttle,
                credentials=self.finder,
                tell_use=tell_use,
                checks_url=settings.database_checks_url,
            )
            await parts.start(group)
            entitlements = EntitlementService(
                database,
                database.lane(name="entitlements"),
                settings.catalog,
                self._clock,
                tell_use,
            )
            group.push_async_callback(entitlements.close)
            rejections = RejectionLog(database, self._clock)
            rejections.repeat_in(group)
            self._running = Running(database, parts, entitlements, rejections, group.pop_all())
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
        closing = asyncio.create_task(running.group.aclose())
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

    async def admit(self, scope: Scope, *, client_address: ClientAddress | None = None) -> Admitted:
        """Authenticate and count the request of an ASGI scope; ``client_address`` is as for the
        middleware. Raises the service's refusals (`DomainError`).
        """
        return await self.authenticate(self.sender_of(asgi_request(scope), client_address))

    def record_rejection(self, sender: KnownSender, request: RefusedRequest) -> None:
        if self._running is not None:
            self._running.rejections.record(sender, request)

    async def check(self, sender: Sender) -> Admitted | Rejected:
        async with self._within_limits() as running:
            return await running.parts.admission.admit(sender)

    def caller_of(self, principal: RequestPrincipal) -> AsgiPrincipal:
        return AsgiPrincipal(
            *msgspec.structs.astuple(principal), consumer=self.consume, returner=self.give_back
        )

    async def consume(self, principal: RequestPrincipal, use: Use) -> Consumed:
        """Count a use, as `AsgiPrincipal.consume`."""
        async with self._within_limits() as running:
            return await running.entitlements.consume(
                principal, use.feature, use.amount, use.claim(self.finder)
            )

    async def give_back(self, principal: RequestPrincipal, used: UsedKey) -> Consumed:
        """Give a use back, as `AsgiPrincipal.give_back`."""
        key = self.finder.without_secret(used.idempotency_key)
        async with self._within_limits() as running:
            return await running.entitlements.give_back(principal, used.feature, key)

    @asynccontextmanager
    async def _within_limits(self) -> AsyncIterator[Running]:
        """Run the block within the time limit of a request, once the schema is known to fit. Raises
        `AuthUnavailableError` if the database does not answer.
        """
        if self._running is None:
            raise RuntimeError(
                "This AsgiAuthenticator has not been started: use its lifespan, or `async with`."
            )
        try:
            async with asyncio.timeout(self._timeouts.request):
                if not self._schema_checked:
                    await self._check_schema(self._running.database)
                yield self._running
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
    """Return what a server says of its client's address, if that can be stored."""
    if text and len(text) <= _LONGEST_ADDRESS and text.isprintable():
        return text
    return None
