"""Admission control: authenticate a request, count it, and delay rejected credentials."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Final, TypeVar

import httpx2
import msgspec

from tenantry.auth import rate_limits_store as rate_limits
from tenantry.auth.api_keys_store import record_uses
from tenantry.auth.authentication import (
    AcceptInvitation,
    Authenticated,
    Authenticator,
    KeyAnswer,
)
from tenantry.auth.authentication_store import NO_PAGE
from tenantry.auth.credentials import CredentialFinder, CredentialKind
from tenantry.auth.entitlements import TellUse
from tenantry.auth.rate_limits import RateLimiter
from tenantry.auth.rejection_throttle import THROTTLED, Throttle, credential_throttle
from tenantry.auth.request_quotas import RequestQuotas
from tenantry.auth.user_profiles import VisitRecorder, visit_writes
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock
from tenantry.common.secret import Secret
from tenantry.db.database import Database
from tenantry.db.pagination import Window
from tenantry.db.standby_lane import LookupLane
from tenantry.db.standbys import Standbys
from tenantry.db.write_behind import WriteBehind
from tenantry.domain import errors
from tenantry.domain.api_keys import Pepper
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Catalog
from tenantry.domain.rate_limits import (
    DISTANT_DATABASE,
    NEAR_DATABASE,
    RateLimitStatus,
)
from tenantry.domain.telemetry import SILENT, Telemetry
from tenantry.integrations.oidc.claims import Claims, OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import TokenVerifier

Counted = TypeVar("Counted")
_RECANCEL_AFTER: Final = 1.0
"""Seconds."""


class Admitted(msgspec.Struct, frozen=True):
    """The sender of an accepted request, and the status of their rate limits."""

    principal: RequestPrincipal
    rate_limits: RateLimitStatus


@dataclass(frozen=True)
class Admission:
    """Authenticates a request, then counts it. Sends rejections of credentials at a bounded rate.

    Accepted requests are never delayed.

    ``deadline`` is how many seconds after its arrival a request must be counted, on the
    ``monotonic`` clock.
    """

    authenticator: Authenticator
    limiter: RateLimiter
    _: KW_ONLY
    quotas: RequestQuotas | None = None
    """Where the catalog has a feature that counts requests."""
    deadline: float = DEFAULT_TIMEOUTS.request
    monotonic: Callable[[], float] = time.monotonic
    telemetry: Telemetry = SILENT
    throttle: Throttle = field(default_factory=credential_throttle)

    @cached_property
    def credentials(self) -> CredentialFinder:
        """Finds the credential of a request."""
        return self.authenticator.credentials

    async def admit(
        self,
        authorization: bytes | None,
        organization: bytes | None,
        address: str | None,
        api_key: bytes | None = None,
    ) -> Admitted:
        """Authenticate a request, and count it. Raises as `authenticate` and `count`."""
        began = self.monotonic()
        found = await self.authenticate(
            authorization,
            organization,
            address,
            api_key=api_key,
        )
        return Admitted(found.principal, await self.count(found.principal, began))

    async def authenticate(
        self,
        authorization: bytes | None,
        organization: bytes | None,
        address: str | None,
        window: Window | None = None,
        api_key: bytes | None = None,
    ) -> Authenticated:
        """Authenticate a request by its ``Authorization`` and ``X-Organization-Id`` headers and its
        client's address.

        ``window`` requests a page in the same lookup; ``api_key`` is the value of the header for
        API keys. Raises the errors of authentication (CONTRACT 5), such as `AuthUnavailableError`.
        """
        try:
            return await self.authenticator.authenticate(
                authorization,
                organization,
                address,
                window,
                api_key,
            )
        except errors.DomainError as error:
            await self._delay(error, self.credentials.label(authorization, api_key))
            raise

    async def accept_key(self, answer: KeyAnswer, address: str | None) -> Authenticated:
        """Authenticate by the answer to `Authenticator.look_up`. Raises as `authenticate`."""
        try:
            return self.authenticator.accept_key(answer, address)
        except errors.DomainError as error:
            await self._delay(error, CredentialKind.API_KEY)
            raise

    def count_locally(self, principal: RequestPrincipal) -> RateLimitStatus | None:
        """Count a request if that needs no query; else return None: then use `count`.

        Raises `RateLimitedError`.
        """
        return self.limiter.count_locally(principal) if self.quotas is None else None

    async def count(
        self, principal: RequestPrincipal, began: float, *, counts_quota: bool = True
    ) -> RateLimitStatus:
        """Count the request of a principal that arrived at ``began`` on the ``monotonic`` clock.

        Without ``counts_quota`` it counts for the rate limit only. Raises `RateLimitedError`,
        `QuotaExceededError`, and `AuthUnavailableError` if it cannot be counted in time.
        """
        status = self.limiter.count_locally(principal)
        if status is None:
            status = await _within(self._remaining(began), self.limiter.count(principal))
        quotas = self.quotas
        if quotas is not None and counts_quota and not quotas.count_locally(principal):
            await _within(self._remaining(began), quotas.count(principal))
        return status

    def _remaining(self, began: float) -> float:
        return self.deadline - (self.monotonic() - began)

    async def count_user(self, claims: Claims, what: str, limit: int) -> RateLimitStatus:
        """Count a user's request outside any tenant, such as creating one: ``limit`` of ``what`` a
        minute.

        Raises `RateLimitedError` and `AuthUnavailableError`.
        """
        subject = f"{what} {claims.issuer} {claims.subject}"
        return await _within(self.deadline, self.limiter.count_user(subject, limit))

    @asynccontextmanager
    async def delaying(self, kind: str) -> AsyncIterator[None]:
        """Delay an error that the block raises; ``kind`` is the kind of credential that it
        checks.
        """
        try:
            yield
        except errors.DomainError as error:
            await self._delay(error, kind)
            raise

    async def _delay(self, error: errors.DomainError, kind: str) -> None:
        if kind != "token" or isinstance(error, errors.AuthUnavailableError):
            error.token_fault = None
        elif error.token_fault is None:
            error.token_fault = errors.TokenFault(error.code, error.detail)
        self.telemetry.credential_refused(kind, error)
        if isinstance(error, THROTTLED):
            await self.throttle.wait()


async def _within(seconds: float, counting: Awaitable[Counted]) -> Counted:
    try:
        async with asyncio.timeout(seconds):
            return await counting
    except TimeoutError as error:
        raise errors.AuthUnavailableError(
            "The database is too slow to count requests. Try again shortly."
        ) from error


class AuthenticationParts:
    """Authentication on an open database; the caller closes ``database`` and ``http_client``."""

    def __init__(
        self,
        database: Database,
        http_client: httpx2.AsyncClient,
        *,
        peppers: Sequence[Secret],
        oidc: OidcConfig | None,
        catalog: Catalog,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        owner_seen: Callable[[str, Claims], None] = lambda _org_id, _claims: None,
        accept: AcceptInvitation | None = None,
        throttle: Throttle | None = None,
        page: str = NO_PAGE,
        credentials: CredentialFinder | None = None,
        tell_use: Sequence[TellUse] = (),
        checks_url: str | None = None,
        telemetry: Telemetry = SILENT,
        gather_seconds: float = 0.0,
    ) -> None:
        """``monotonic`` is a monotonic clock, in seconds; ``throttle`` delays rejections, by
        default as in the service.

        ``owner_seen``, ``accept``, ``page``, ``credentials`` and ``gather_seconds`` are as in
        `Authenticator`.
        ``tell_use`` is as in `RequestQuotas`. ``checks_url`` names the standbys that may answer
        lookups, because the primary may be distant.
        """
        self.peppers = tuple(Pepper(pepper.reveal().encode()) for pepper in peppers)
        self.key_uses = WriteBehind(database, "uses of keys", record_uses)
        self.visits = visit_writes(database)
        self.keys: KeySet | None = None
        tokens: TokenVerifier | None = None
        if oidc is not None:
            timeout = database.timeouts.identity_provider
            self.keys = KeySet(oidc, http_client, monotonic=monotonic, timeout=timeout)
            tokens = TokenVerifier(oidc, self.keys, clock=clock, telemetry=telemetry)
        self.standbys: Standbys | None = None
        if checks_url is not None:
            self.standbys = Standbys(database, checks_url, telemetry)
        self.authenticator = Authenticator(
            keys=self._lookup_lane(database, "keys"),
            users=self._lookup_lane(database, "users"),
            peppers=self.peppers,
            tokens=tokens,
            catalog=catalog,
            clock=clock,
            key_used=self.key_uses.record,
            owner_seen=owner_seen,
            user_seen=VisitRecorder(clock, self.visits).record,
            accept=accept,
            page=page,
            credentials=credentials or CredentialFinder(),
            gather_seconds=gather_seconds,
        )
        self.limiter = RateLimiter(
            database.lane(rate_limits.SESSION, name="rate_limits"),
            catalog,
            clock,
            telemetry,
            NEAR_DATABASE if checks_url is None else DISTANT_DATABASE,
        )
        self.quotas: RequestQuotas | None = None
        if catalog.counts_requests is not None:
            quota_lane = database.lane(name="request_quotas")
            self.quotas = RequestQuotas(
                quota_lane,
                catalog.counts_requests,
                clock,
                tell_use,
                telemetry,
            )
        self.admission = Admission(
            self.authenticator,
            self.limiter,
            quotas=self.quotas,
            deadline=database.timeouts.request,
            telemetry=telemetry,
            throttle=throttle or credential_throttle(),
        )

    def _lookup_lane(self, database: Database, name: str) -> LookupLane:
        lane = database.lane(name=name)
        return lane if self.standbys is None else self.standbys.lane(lane)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background tasks during the block, and stop them in order."""
        async with AsyncExitStack() as stack:
            for pending in (self.key_uses, self.visits):
                stack.push_async_callback(pending.write)
                stack.push_async_callback(stop, asyncio.create_task(pending.run()))
            if self.keys is not None:
                await self.keys.start()
                stack.push_async_callback(self.keys.aclose)
            stack.push_async_callback(self.limiter.close)
            stack.push_async_callback(stop, asyncio.create_task(self.limiter.run()))
            if self.quotas is not None:
                stack.push_async_callback(self.quotas.close)
                stack.push_async_callback(stop, asyncio.create_task(self.quotas.run()))
            if self.standbys is not None:
                stack.push_async_callback(self.standbys.close)
                stack.push_async_callback(stop, asyncio.create_task(self.standbys.run()))
            stack.push_async_callback(self.authenticator.close)
            yield


async def stop(task: "asyncio.Task[None]", recancel_after: float = _RECANCEL_AFTER) -> None:
    """Cancel a task unless that has begun, and wait for its end; cancel it again after
    ``recancel_after`` seconds.
    """
    if not task.cancelling():
        task.cancel()
    _, late = await asyncio.wait([task], timeout=recancel_after)
    # a pool may lose the cancellation (until Python 3.12), and the end of a task may be shielded
    while late:
        task.cancel()
        _, late = await asyncio.wait([task], timeout=_RECANCEL_AFTER)
    with suppress(asyncio.CancelledError):
        await task
