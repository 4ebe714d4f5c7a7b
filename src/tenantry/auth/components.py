"""The components of authentication, built and wired for the service and for applications that embed them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import httpx2

from tenantry.auth import rate_limits_store as rate_limits
from tenantry.auth.api_keys_store import record_uses
from tenantry.auth.authentication import AcceptInvitation, Admission, Authenticator
from tenantry.auth.rate_limits import RateLimiter
from tenantry.common.clock import Clock
from tenantry.common.secret import Secret
from tenantry.db.database import Database
from tenantry.db.write_behind import WriteBehind
from tenantry.domain.api_keys import Pepper
from tenantry.domain.plans import Catalog
from tenantry.domain.rate_limits import Policy
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import Claims, TokenVerifier

_RECANCEL_AFTER: Final = 1.0
"""Seconds."""


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
        limited: Callable[[Policy], None] = lambda _: None,
        refused: Callable[[str, str], None] = lambda _kind, _reason: None,
    ) -> None:
        """``monotonic`` is a monotonic clock, in seconds.

        ``owner_seen`` and ``accept`` are as in `Authenticator`. ``limited`` receives the policy whose limit a request
        exceeds, ``refused`` the kind of a rejected credential and the error code.
        """
        self.peppers = tuple(Pepper(pepper.reveal().encode()) for pepper in peppers)
        self.keys = (
            KeySet(oidc, http_client, monotonic=monotonic, timeout=database.timeouts.identity_provider)
            if oidc
            else None
        )
        self.key_uses = WriteBehind(database, "uses of keys", record_uses)
        self.authenticator = Authenticator(
            keys=database.lane(name="keys"),
            users=database.lane(name="users"),
            peppers=self.peppers,
            tokens=TokenVerifier(oidc, self.keys, clock=clock) if oidc and self.keys else None,
            clock=clock,
            key_used=self.key_uses.record,
            owner_seen=owner_seen,
            accept=accept,
        )
        self.limiter = RateLimiter(database.lane(rate_limits.SESSION, name="rate_limits"), catalog, clock, limited)
        self.admission = Admission(
            self.authenticator, self.limiter, deadline=database.timeouts.request, refused=refused
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background tasks during the block, and stop them in order."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.key_uses.write)
            stack.push_async_callback(stop, asyncio.create_task(self.key_uses.run()))
            if self.keys is not None:
                await self.keys.start()
                stack.push_async_callback(self.keys.aclose)
            stack.push_async_callback(self.limiter.close)
            stack.push_async_callback(stop, asyncio.create_task(self.limiter.run()))
            stack.push_async_callback(self.authenticator.close)
            yield


async def stop(task: "asyncio.Task[None]", patience: float = _RECANCEL_AFTER) -> None:
    """Cancel a task unless it is being canceled, and wait for its end; cancel it again after ``patience`` seconds."""
    if not task.cancelling():
        task.cancel()
    _, late = await asyncio.wait([task], timeout=patience)
    while late:  # a pool may lose the cancellation (until Python 3.12), and the end of a task may be shielded
        task.cancel()
        _, late = await asyncio.wait([task], timeout=_RECANCEL_AFTER)
    with suppress(asyncio.CancelledError):
        await task
