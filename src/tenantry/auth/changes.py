"""The frame of every change to a tenant: its lock, the caller's permission as of now, the audit
trail, and an answer that is given once.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic

import msgspec

from tenantry.audit.trail import RecordedChange
from tenantry.auth.authentication import lock_and_reauthorize
from tenantry.common.clock import Clock
from tenantry.db import idempotency_store as idempotency
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Answer, Claim
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain.audit import Author
from tenantry.domain.permissions import RequestPrincipal
from tenantry.notifications.mail_outbox import TenantMails


@dataclass(eq=False)
class Change(RecordedChange):
    """A change to a tenant, whose row the transaction of ``connection`` has locked.

    ``tenant`` is the row before the change, and ``now`` a time after the lock.
    """

    org_id: str = field(init=False)
    tenant: TenantRow

    def __post_init__(self) -> None:
        self.org_id = self.tenant.record.id

    def mails(self, outbox: Outbox) -> TenantMails:
        """Return what queues the tenant's mails in the transaction of the change."""
        return TenantMails(self.connection, outbox, self.now, self.org_id)


@dataclass(eq=False)
class CallersChange(Change):
    """A change by a ``caller``: the principal of a request, with the permissions of now."""

    caller: RequestPrincipal


class Repeated(msgspec.Struct, Generic[Answer], frozen=True):
    """The answer of the first of several equal requests. There is nothing to change."""

    first_answer: Answer


@dataclass(eq=False)
class FirstRequest(Generic[Answer]):
    """The first of several equal requests. The block ends with `answer`."""

    given: Answer | None = None

    def answer(self, answer: Answer) -> Answer:
        """Answer with this, and keep it for repeated requests when the block ends."""
        self.given = answer
        return answer


@asynccontextmanager
async def answered_once(
    connection: Connection, claim: Claim | None, kind: type[Answer], now: datetime
) -> AsyncIterator[FirstRequest[Answer] | Repeated[Answer]]:
    """Answer a request that may have an idempotency key, with an answer of this ``kind``: give the
    answer of the request that it repeats, or else a first request that the block answers.

    The answer is kept in the transaction of the block. For changes to a principal's tenant there is
    `Changes.begin_once`. Raises the errors of idempotency.
    """
    repeated = await idempotency.begin(connection, claim, kind, now)
    if repeated is not None:
        yield Repeated(repeated)
        return
    request = FirstRequest[Answer]()
    yield request
    if request.given is None:
        raise RuntimeError("a request that is answered once ends without its answer")
    await idempotency.keep(connection, claim, request.given, now)


@dataclass(eq=False)
class AnsweredChange(CallersChange, Generic[Answer]):
    """A change by a request that is answered once. The block ends with `answer`."""

    request: FirstRequest[Answer]

    def answer(self, answer: Answer) -> Answer:
        """Answer with this, and keep it for repeated requests when the block ends."""
        return self.request.answer(answer)


@dataclass(frozen=True)
class Changes:
    """Begins changes to the tenants of principals.

    Changes to one tenant run one after another. ``read_by_checks`` says that checks of requests
    read what changes, such as keys and members: then each change is a `Database.change`. Those that
    ``are_use`` of what the tenant pays for are made to no suspended tenant, not even by the
    operator.
    """

    database: Database
    clock: Clock
    read_by_checks: bool = True
    are_use: bool = False

    @asynccontextmanager
    async def begin(
        self, principal: RequestPrincipal, author: Author, scope: str
    ) -> AsyncIterator[CallersChange]:
        """Change the principal's tenant in the block; the caller needs ``scope``.

        Raises `ApiKeyRevokedError`, `ApiKeyExpiredError`, `NoOrganizationError`,
        `OrgSuspendedError`, `InsufficientScopeError`, and `NotFoundError` for an ended tenant: what
        the caller's next request would get.
        """
        async with self._transaction(principal.org_id) as connection:
            found = await self._lock(connection, principal, scope)
            tenant, caller, now = found
            yield CallersChange(connection, author, now, tenant, caller)

    @asynccontextmanager
    async def begin_once(
        self,
        principal: RequestPrincipal,
        author: Author,
        scope: str,
        *,
        claim: Claim | None,
        kind: type[Answer],
    ) -> AsyncIterator[AnsweredChange[Answer] | Repeated[Answer]]:
        """As `begin`, for a request that may have an idempotency key, with an answer of this
        ``kind``: give the answer of the request that it repeats, or else a change that the block
        answers.

        Raises the errors of idempotency too.
        """
        async with (
            self._transaction(principal.org_id) as connection,
            answered_once(connection, claim, kind, self.clock()) as request,
        ):
            if isinstance(request, Repeated):
                yield request
                return
            found = await self._lock(connection, principal, scope)
            tenant, caller, now = found
            yield AnsweredChange(connection, author, now, tenant, caller, request)

    @asynccontextmanager
    async def begin_in_tenant(
        self, org_id: str, author: Author, *, even_ended: bool = False
    ) -> AsyncIterator[Change]:
        """Change a tenant in the block, also a suspended one, without a caller to authorize.

        Raises `NotFoundError` without one, and for an ended one unless ``even_ended``.
        """
        async with self._transaction(org_id) as connection:
            tenant = await get_tenant(connection, org_id, lock=True, even_ended=even_ended)
            yield Change(connection, author, self.clock(), tenant)

    async def _lock(
        self, connection: Connection, principal: RequestPrincipal, scope: str
    ) -> tuple[TenantRow, RequestPrincipal, datetime]:
        return await lock_and_reauthorize(
            connection,
            principal,
            scope,
            self.clock,
            is_use=self.are_use,
        )

    def _transaction(self, org_id: str) -> AbstractAsyncContextManager[Connection]:
        scope = of_tenant(org_id)
        return (
            self.database.change(scope) if self.read_by_checks else self.database.transaction(scope)
        )
