"""Grants of tenants: set and ended by the operator, as entries of the ledger that are folded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from msgspec import UNSET, UnsetType

from tenantry.audit.trail import RecordedChange
from tenantry.billing.batch_store import read_accounts
from tenantry.billing.locked_ledger import LedgerTransaction
from tenantry.billing.locked_tenants import LockedTenant, lock_tenant
from tenantry.billing.whole_ledgers import fold_ledgers
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS
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
    check_expected,
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
        _check_id(tenant_id)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            accounts = await read_accounts(connection, [tenant_id], self.policy)
            if not accounts:
                raise NotFoundError("tenant")
            [account] = accounts
            if not account.is_whole:
                [(account, _)] = await fold_ledgers(connection, accounts, self.policy)
        return list(map(grant_of, grants_in_force(account, self.clock())))

    async def put(
        self,
        author: Author,
        tenant_id: str,
        name: str,
        wanted: GrantInput,
        *,
        expected: GrantTerms | UnsetType | None = UNSET,
    ) -> Grant:
        """Set a grant, or replace its terms; a grant that counts with the same terms stays as it
        is.

        ``expected`` are the terms to replace, None to set a new grant; unset replaces any. Raises
        `ValidationError` also if others count.

        Raises `ValidationError`, `NotFoundError`, `TenantDeletedError` and
        `GrantLimitReachedError`.
        """
        now = self.clock()
        terms = new_terms(name, wanted, self.policy.catalog, now)
        async with self._changing(author, tenant_id, now) as change:
            return await change.set(terms, expected)

    async def end(self, author: Author, tenant_id: str, name: str) -> Grant:
        """End a grant and return it; one that has ended stays as it is.

        Raises `NotFoundError` and `TenantDeletedError`.
        """
        now = self.clock()
        async with self._changing(author, tenant_id, now) as change:
            return await change.end(name)

    @asynccontextmanager
    async def _changing(
        self, author: Author, tenant_id: str, now: datetime
    ) -> AsyncIterator["GrantChange"]:
        """Give a change in its own transaction."""
        _check_id(tenant_id)
        async with self.database.change(ACROSS_TENANTS) as connection:
            transaction = LedgerTransaction(connection, self.policy, now, self.outbox)
            async with lock_tenant(transaction, tenant_id) as ledger:
                yield GrantChange(ledger, author)


@dataclass(frozen=True)
class GrantChange:
    """A change of a locked tenant's grant.

    It adds an entry to the tenant's ledger, folds that like an event of the provider, and records
    it in the audit trail.
    """

    ledger: LockedTenant
    author: Author

    async def set(
        self, terms: GrantTerms, expected: GrantTerms | UnsetType | None = UNSET
    ) -> Grant:
        """Set a grant; see `GrantService.put`."""
        account = await self._account()
        grants = account.held_grants
        held = grants.pop(terms.name, None)
        current = held.terms if held is not None and self._counts(held) else None
        if held is not None and current == terms:
            return grant_of(held)
        if not isinstance(expected, UnsetType):
            check_expected(current, expected)
        check_number_of_grants(grants.values(), self._now)
        after = await self._fold(GRANT_SET, terms, account)
        before = None
        if held is not None and held.ended_at is None:
            before = grant_of(held)
        await self._change.record(
            Action.GRANT_SET, terms.name, before=before, after=grant_of(after)
        )
        return grant_of(after)

    async def end(self, name: str) -> Grant:
        """End a grant; see `GrantService.end`."""
        account = await self._account()
        held = account.held_grants.get(name)
        if held is None:
            raise NotFoundError("grant")
        if not self._counts(held):
            return grant_of(held)
        after = await self._fold(GRANT_ENDED, held.terms, account)
        await self._change.record(
            Action.GRANT_ENDED, name, before=grant_of(held), shown=grant_of(after)
        )
        return grant_of(after)

    @property
    def _change(self) -> RecordedChange:
        connection, org_id = self.ledger.transaction.connection, self.ledger.tenant_id
        return RecordedChange(connection, self.author, org_id, self._now)

    @property
    def _now(self) -> datetime:
        return self.ledger.transaction.now

    def _counts(self, held: HeldGrant) -> bool:
        return held.counts_at(self._now.timestamp())

    async def _account(self) -> BillingAccount:
        """Return the tenant's account, folded again where the stored folds are not whole."""
        account = self.ledger.account
        if account is None:
            raise NotFoundError("tenant")
        if account.deleted:
            raise TenantDeletedError("The tenant has ended; its id is free again after 30 days.")
        return account if account.is_whole else (await self.ledger.fold_again(account)).account

    async def _fold(self, event_type: str, terms: GrantTerms, account: BillingAccount) -> HeldGrant:
        """Add the event of a change to the ledger, and fold it; return the grant after it."""
        fold = account.folds.get(grant_key(terms.name))
        event = BillingEvent(
            id=new_id("grant"),
            type=event_type,
            created=self._second_after(fold),
            org_id=account.tenant_id,
            grant=terms,
        )
        changes = await self.ledger.apply([ReceivedEvent(event, self._now)])
        await self.ledger.write(changes)
        return changes.accounts[account.tenant_id].held_grants[terms.name]

    def _second_after(self, fold: Folded | None) -> int:
        """Return the second of a change: not before the last one, whose process may have had a
        clock that is ahead.
        """
        now = int(self._now.timestamp())
        if fold is None or fold.tip_created is None:
            return now
        return max(now, fold.tip_created)


def grants_in_force(account: BillingAccount, now: datetime) -> list[HeldGrant]:
    """Return the grants of an account that count at ``now``, by name."""
    second = now.timestamp()
    held = (state.grant for state in account.grants())
    return [each for each in held if each is not None and each.counts_at(second)]


def _check_id(tenant_id: str) -> None:
    if not is_tenant_id(tenant_id):
        raise NotFoundError("tenant")
