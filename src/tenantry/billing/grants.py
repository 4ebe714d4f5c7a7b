"""Grants of tenants: set and ended by the operator, as entries of the ledger that are folded."""

from dataclasses import dataclass
from datetime import datetime

from tenantry.audit import trail as audit
from tenantry.billing import ingest
from tenantry.billing.accounts_store import read_accounts
from tenantry.billing.whole_ledgers import fold_ledgers
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import Action, Author
from tenantry.domain.billing.events import GRANT_ENDED, GRANT_SET, BillingEvent
from tenantry.domain.billing.ledger import BillingAccount, ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy, grant_key
from tenantry.domain.billing.timeline import Folded
from tenantry.domain.errors import NotFoundError, TenantDeletedError
from tenantry.domain.grants import (
    Grant,
    GrantInput,
    GrantTerms,
    HeldGrant,
    check_number_of_grants,
    grant_of,
    new_terms,
)
from tenantry.domain.tenants import is_tenant_id


@dataclass(frozen=True)
class GrantService:
    """The grants of any tenant, for the operator."""

    database: Database
    policy: BillingPolicy
    outbox: Outbox
    clock: Clock

    async def list_all(self, tenant_id: str) -> list[Grant]:
        """Return the grants that count now, by name. Raises `NotFoundError`."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            account = await _read(connection, tenant_id, self.policy, lock=False)
        return list(map(grant_of, grants_in_force(account, self.clock())))

    async def put(self, author: Author, tenant_id: str, name: str, wanted: GrantInput) -> Grant:
        """Set a grant, or replace its terms; a grant that counts with the same terms stays as it
        is.

        Raises `ValidationError`, `NotFoundError`, `TenantDeletedError` and
        `GrantLimitReachedError`.
        """
        now = self.clock()
        terms = new_terms(name, wanted, self.policy.catalog, now)
        async with self.database.change(ACROSS_TENANTS) as connection:
            return await self._change(connection, author, tenant_id, now).set(terms)

    async def end(self, author: Author, tenant_id: str, name: str) -> Grant:
        """End a grant and return it; one that has ended stays as it is.

        Raises `NotFoundError` and `TenantDeletedError`.
        """
        now = self.clock()
        async with self.database.change(ACROSS_TENANTS) as connection:
            return await self._change(connection, author, tenant_id, now).end(name)

    def _change(
        self, connection: Connection, author: Author, tenant_id: str, now: datetime
    ) -> "GrantChange":
        return GrantChange(
            connection,
            self.policy,
            self.outbox,
            author,
            tenant_id,
            now,
        )


@dataclass(frozen=True)
class GrantChange:
    """A change of a tenant's grant in the transaction of ``connection``, which holds no other
    tenant.

    It locks the tenant, adds an entry to its ledger, folds that like an event of the provider, and
    records it in the audit trail.
    """

    connection: Connection
    policy: BillingPolicy
    outbox: Outbox
    author: Author
    tenant_id: str
    now: datetime

    async def set(self, terms: GrantTerms) -> Grant:
        """Set a grant; see `GrantService.put`."""
        account = await self._lock()
        grants = account.held_grants
        held = grants.pop(terms.name, None)
        if held is not None and held.terms == terms and self._counts(held):
            return grant_of(held)
        check_number_of_grants(grants.values(), self.now)
        after = await self._fold(GRANT_SET, terms, account)
        before = None
        if held is not None and held.ended_at is None:
            before = grant_of(held)
        await self._record(
            Action.GRANT_SET,
            terms.name,
            before,
            grant_of(after),
        )
        return grant_of(after)

    async def end(self, name: str) -> Grant:
        """End a grant; see `GrantService.end`."""
        account = await self._lock()
        held = account.held_grants.get(name)
        if held is None:
            raise NotFoundError("grant")
        if not self._counts(held):
            return grant_of(held)
        after = await self._fold(GRANT_ENDED, held.terms, account)
        await self._record(
            Action.GRANT_ENDED,
            name,
            grant_of(held),
            None,
            shown=grant_of(after),
        )
        return grant_of(after)

    def _counts(self, held: HeldGrant) -> bool:
        return held.counts_at(self.now.timestamp())

    async def _lock(self) -> BillingAccount:
        account = await _read(self.connection, self.tenant_id, self.policy, lock=True)
        if account.deleted:
            raise TenantDeletedError("The tenant has ended; its id is free again after 30 days.")
        return account

    async def _fold(self, event_type: str, terms: GrantTerms, account: BillingAccount) -> HeldGrant:
        """Add the event of a change to the ledger, and fold it; return the grant after it."""
        fold = account.folds.get(grant_key(terms.name))
        event = BillingEvent(
            id=new_id("grant"),
            type=event_type,
            created=self._second_after(fold),
            org_id=self.tenant_id,
            grant=terms,
        )
        received = ReceivedEvent(event, self.now)
        changes = await ingest.apply_batch(
            self.connection,
            [received],
            self.policy,
            self.now,
        )
        await ingest.write(
            self.connection,
            changes,
            self.outbox,
            self.now,
        )
        return changes.accounts[self.tenant_id].held_grants[terms.name]

    def _second_after(self, fold: Folded | None) -> int:
        """Return the second of a change: not before the last one, whose process may have had a
        clock that is ahead.
        """
        now = int(self.now.timestamp())
        if fold is None or fold.tip_created is None:
            return now
        return max(now, fold.tip_created)

    async def _record(
        self,
        action: Action,
        name: str,
        before: Grant | None,
        after: Grant | None,
        *,
        shown: Grant | None = None,
    ) -> None:
        target = (self.tenant_id, name)
        await audit.record(
            self.connection,
            self.author,
            action,
            target,
            self.now,
            before=before,
            after=after,
            shown=shown,
        )


def grants_in_force(account: BillingAccount, now: datetime) -> list[HeldGrant]:
    """Return the grants of an account that count at ``now``, by name."""
    second = now.timestamp()
    held = (state.grant for state in account.grants())
    return [each for each in held if each is not None and each.counts_at(second)]


async def _read(
    connection: Connection, tenant_id: str, policy: BillingPolicy, *, lock: bool
) -> BillingAccount:
    """Return a tenant's account, folded again where the stored folds are not whole."""
    if not is_tenant_id(tenant_id):
        raise NotFoundError("tenant")
    accounts = await read_accounts(
        connection,
        [tenant_id],
        policy,
        lock=lock,
    )
    if not accounts:
        raise NotFoundError("tenant")
    [account] = accounts
    if account.is_whole:
        return account
    [folded] = await fold_ledgers(connection, accounts, policy)
    return folded.account
