"""What tells who sends a request, built and wired: the service has these parts, and so have applications beside it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import httpx2
import psycopg

from tenantry.auth import rate_limits_store as rate_limits
from tenantry.auth.authentication import AcceptInvitation, Admission, Authenticator
from tenantry.auth.last_used import KeyUse
from tenantry.auth.rate_limits import RateLimiter
from tenantry.common.clock import Clock
from tenantry.common.secret import Secret
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.migrate import newest_revision
from tenantry.domain.api_keys import Pepper
from tenantry.domain.plans import Catalog
from tenantry.domain.rate_limits import Policy
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import Claims, TokenVerifier

_CANCELLED_AGAIN: Final = 1.0
"""Seconds."""


class AuthenticationParts:
    """The parts of authentication on an open database; ``database`` and ``http_client`` stay the caller's to close."""

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
        """``monotonic`` returns seconds that never go back.

        ``owner_seen`` is told of owners whose address has changed; ``accept`` accepts an invitation to the tenant that
        a request names; without it nothing is written. ``limited`` is told whose limit a request was over,
        ``refused`` what sort of credential was refused, and why.
        """
        self.peppers = tuple(Pepper(pepper.reveal().encode()) for pepper in peppers)
        self.keys = (
            KeySet(oidc, http_client, monotonic=monotonic, timeout=database.timeouts.identity_provider)
            if oidc
            else None
        )
        self.key_use = KeyUse(database)
        self.authenticator = Authenticator(
            keys=database.lane(name="keys"),
            users=database.lane(name="users"),
            peppers=self.peppers,
            tokens=TokenVerifier(oidc, self.keys, clock=clock) if oidc and self.keys else None,
            clock=clock,
            key_used=self.key_use.record,
            owner_seen=owner_seen,
            accept=accept,
        )
        self.limiter = RateLimiter(database.lane(rate_limits.SESSION, name="rate_limits"), catalog, clock, limited)
        self.admission = Admission(
            self.authenticator, self.limiter, deadline=database.timeouts.request, refused=refused
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything running for the length of the block; what was begun is ended properly."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.key_use.write)
            stack.push_async_callback(stop, asyncio.create_task(self.key_use.run()))
            if self.keys is not None:
                await self.keys.start()
                stack.push_async_callback(self.keys.aclose)
            stack.push_async_callback(self.limiter.close)
            stack.push_async_callback(stop, asyncio.create_task(self.limiter.run()))
            stack.push_async_callback(self.authenticator.close)
            yield


async def schema_revision(database: Database) -> str | None:
    """The revision that the database is at. Raises `DatabaseUnavailableError`.

    None for one that was never migrated, or whose tables this login may not read.
    """
    try:
        async with database.transaction(ACROSS_TENANTS) as connection:
            cursor = await connection.execute("SELECT version_num FROM alembic_version")
            row = await cursor.fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
        return None
    return row[0] if row else None


def is_current(revision: str | None) -> bool:
    """Whether a schema at this revision has all that this release needs."""
    return revision is not None and revision >= newest_revision()


async def stop(task: "asyncio.Task[None]", patience: float = _CANCELLED_AGAIN) -> None:
    """Cancel a task, if that was not done, and wait for its end; after ``patience`` seconds cancel that too."""
    if not task.cancelling():
        task.cancel()
    _, late = await asyncio.wait([task], timeout=patience)
    while late:  # a pool may lose it (until Python 3.12), and what a task ends with may be shielded
        task.cancel()
        _, late = await asyncio.wait([task], timeout=_CANCELLED_AGAIN)
    with suppress(asyncio.CancelledError):
        await task
