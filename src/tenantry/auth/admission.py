"""Admission control: authenticate a request, count it, and delay rejected credentials."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Final, TypeVar

import httpx2
import msgspec

from tenantry.auth import rate_limits_store as rate_limits
from tenantry.auth.api_keys_store import KeyUse, bind, record_uses
from tenantry.auth.authentication import (
    AcceptInvitation,
    Authenticated,
    Authenticator,
    KeyAnswer,
    Rejected,
)
from tenantry.auth.authentication_store import NO_PAGE
from tenantry.auth.credentials import CredentialFinder, CredentialKind, Sender
from tenantry.auth.entitlements import TellUse
from tenantry.auth.rate_limits import RateLimiter
from tenantry.auth.rejection_throttle import THROTTLED, Throttle, credential_throttle
from tenantry.auth.request_quotas import RequestQuotas
from tenantry.auth.user_profiles import VisitRecorder, visit_writes
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock
from tenantry.common.secret import Secret
from tenantry.db.background import BackgroundGroup
from tenantry.db.connection import ACROSS_TENANTS
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
from tenantry.domain.rejections import sender_of
from tenantry.domain.standby_checks import RENEWAL_INTERVAL
from tenantry.domain.telemetry import SILENT, Telemetry
from tenantry.integrations.oidc.claims import Claims, OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import TokenVerifier

Counted = TypeVar("Counted")
_SHARES_RETURNED_EVERY: Final = 1.0
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
        sender: Sender,
    ) -> Admitted | Rejected:
        """Authenticate a request, and count it. One over a limit is rejected too. Raises
        `AuthUnavailableError` as `count`.
        """
        began = self.monotonic()
        found = await self.authenticate(sender)
        if isinstance(found, Rejected):
            return found
        try:
            return Admitted(found.principal, await self.count(found.principal, began))
        except (errors.RateLimitedError, errors.QuotaExceededError) as error:
            return Rejected(error, sender_of(found.principal))

    async def authenticate(
        self,
        sender: Sender,
        window: Window | None = None,
    ) -> Authenticated | Rejected:
        """Authenticate a request; ``window`` requests a page in the same lookup. Rejections have
        the errors of authentication (CONTRACT 5), such as `AuthUnavailableError`.
        """
        try:
            found = await self.authenticator.authenticate(sender, window)
        except errors.DomainError as error:
            found = Rejected(error)
        if isinstance(found, Rejected):
            return await self.reject(found, self.credentials.label_of(sender.header))
        return found

    async def accept_key(self, answer: KeyAnswer, sender: Sender) -> Authenticated | Rejected:
        """Authenticate by the answer to `Authenticator.look_up`, as `authenticate`."""
        try:
            found = await self.authenticator.accept_key(answer, sender)
        except errors.DomainError as error:
            found = Rejected(error)
        if isinstance(found, Rejected):
            return await self.reject(found, CredentialKind.API_KEY)
        return found

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

    async def reject(self, rejected: Rejected, kind: str) -> Rejected:
        """Count the rejection of a credential of this kind, and delay its answer. Return it with
        the fault of a bearer token.
        """
        error = rejected.error
        fault = _token_fault(error) if kind == CredentialKind.TOKEN else None
        self.telemetry.credential_refused(kind, error, fault)
        if isinstance(error, THROTTLED):
            await self.throttle.wait()
        return msgspec.structs.replace(rejected, token_fault=fault)


def _token_fault(error: errors.DomainError) -> errors.TokenFault | None:
    """Return why a bearer token is refused; None if its check was not possible."""
    if isinstance(error, errors.AuthUnavailableError):
        return None
    return error.token_fault or errors.TokenFault(error.code, error.detail)


async def _within(seconds: float, counting: Awaitable[Counted]) -> Counted:
    try:
        async with asyncio.timeout(seconds):
            return await counting
    except TimeoutError as error:
        raise errors.AuthUnavailableError(
            "The database is too slow to count requests. Try again shortly."
        ) from error


async def _bind(database: Database, use: KeyUse, unbound: bytes) -> bytes | None:
    async with database.transaction(ACROSS_TENANTS) as connection:
        return await bind(connection, use, unbound)


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
        credentials = credentials or CredentialFinder()
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
            bind=partial(_bind, database) if credentials.binds_keys else None,
            page=page,
            credentials=credentials,
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

    async def start(self, group: BackgroundGroup) -> None:
        """Run in ``group`` what works in the background. Its end closes the connections."""
        self.key_uses.repeat_in(group)
        self.visits.repeat_in(group)
        if self.keys is not None:
            await self._start_keys(self.keys, group)
        group.repeat(
            "returns of rate-limit shares",
            self.limiter.tidy,
            every=_SHARES_RETURNED_EVERY,
            last=self.limiter.close,
        )
        if self.quotas is not None:
            group.repeat(
                "returns of quota shares",
                self.quotas.tidy,
                every=_SHARES_RETURNED_EVERY,
                last=self.quotas.close,
            )
        if self.standbys is not None:
            group.push_async_callback(self.standbys.close)
            group.repeat(
                "checks on standbys",
                self.standbys.renew,
                every=RENEWAL_INTERVAL,
                level=logging.WARNING,
            )
        group.push_async_callback(self.authenticator.close)

    async def _start_keys(self, keys: KeySet, group: BackgroundGroup) -> None:
        await keys.refresh()
        group.push_async_callback(keys.aclose)
        group.repeat(
            "refreshes of the identity provider's keys", keys.refresh_if_due, every=keys.pause
        )
