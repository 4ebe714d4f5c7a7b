"""The frame of every change to a tenant: its lock, the caller's permission as of now, the audit
trail, and an answer that is given once.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.audit import trail as audit
from tenantry.auth.authentication import lock_and_reauthorize
from tenantry.common.clock import Clock
from tenantry.db import idempotency_store as idempotency
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Answer, Claim
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain.audit import Action, Author
from tenantry.domain.outbound_events import EventType
from tenantry.domain.permissions import RequestPrincipal


@dataclass(eq=False)
class Change:
    """A change to a tenant, whose row the transaction of ``connection`` has locked.

    ``tenant`` is the row before the change, and ``now`` a time after the lock.
    """

    connection: Connection
    tenant: TenantRow
    author: Author
    now: datetime

    @property
    def org_id(self) -> str:
        """The tenant's id."""
        return self.tenant.record.id

    async def record(
        self,
        action: Action,
        target_id: str,
        *,
        before: msgspec.Struct | None = None,
        after: msgspec.Struct | None = None,
        shown: msgspec.Struct | None = None,
        event: EventType | UnsetType | None = UNSET,
    ) -> None:
        """Record what the change did to an object of the tenant in the audit trail, and publish it.
        The arguments are those of `tenantry.audit.trail.record`.
        """
        await audit.record(
            self.connection,
            self.author,
            action,
            (self.org_id, target_id),
            self.now,
            before=before,
            after=after,
            shown=shown,
            event=event,
        )


@dataclass(eq=False)
class CallersChange(Change):
    """A change by a ``caller``: the principal of a request, with the permissions of now."""

    caller: RequestPrincipal


@dataclass(eq=False)
class AnsweredChange(CallersChange, Generic[Answer]):
    """A change whose answer is kept for repeated requests if there is a ``claim``. The block ends
    with `answer`.
    """

    claim: Claim | None
    is_answered: bool = field(default=False, init=False)

    async def answer(self, answer: Answer) -> Answer:
        """Keep the answer for a repeated request, and return it."""
        await idempotency.keep(self.connection, self.claim, answer, self.now)
        self.is_answered = True
        return answer


class Repeated(msgspec.Struct, Generic[Answer], frozen=True):
    """The answer of the first of several equal requests. There is nothing to change."""

    first_answer: Answer


@dataclass(frozen=True)
class Changes:
    """Begins changes to the tenants of principals.

    Changes to one tenant run one after another. ``read_by_checks`` says that checks of requests
    read what changes, such as keys and members: then each change is a `Database.change`.
    """

    database: Database
    clock: Clock
    read_by_checks: bool = True

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
            found = await lock_and_reauthorize(connection, principal, scope, self.clock)
            tenant, caller, now = found
            yield CallersChange(connection, tenant, author, now, caller)

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
        async with self._transaction(principal.org_id) as connection:
            repeated = await idempotency.begin(connection, claim, kind, self.clock())
            if repeated is not None:
                yield Repeated(repeated)
                return
            found = await lock_and_reauthorize(connection, principal, scope, self.clock)
            tenant, caller, now = found
            change = AnsweredChange[Answer](connection, tenant, author, now, caller, claim)
            yield change
            if not change.is_answered:
                raise RuntimeError("a change that is answered once ends without its answer")

    @asynccontextmanager
    async def begin_in_tenant(
        self, org_id: str, author: Author, *, even_ended: bool = False
    ) -> AsyncIterator[Change]:
        """Change a tenant in the block, also a suspended one, without a caller to authorize.

        Raises `NotFoundError` without one, and for an ended one unless ``even_ended``.
        """
        async with self._transaction(org_id) as connection:
            tenant = await get_tenant(connection, org_id, lock=True, even_ended=even_ended)
            yield Change(connection, tenant, author, self.clock())

    def _transaction(self, org_id: str) -> AbstractAsyncContextManager[Connection]:
        scope = of_tenant(org_id)
        return (
            self.database.change(scope) if self.read_by_checks else self.database.transaction(scope)
        )
