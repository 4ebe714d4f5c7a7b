"""The provider's list of all subscriptions, compared with the tenants' states: which tenants to ask
about.

Finds; never writes. A listed subscription may be older than an event that has arrived since, so
what differs here is fetched anew before it counts (`billing.tenant_comparison`).
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.billing import ledger_store
from tenantry.billing import reconcile_store as store
from tenantry.billing.batch_store import read_accounts
from tenantry.billing.reconcile_store import LinkedTenant
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.snapshot import (
    ProviderSubscription,
    expected,
    gives_access_or_may,
    may_differ,
)
from tenantry.domain.billing.state import BillingPolicy
from tenantry.integrations.stripe.client import ListedSubscription, ProviderApi

MOST_CHECKOUTS: Final = 100
"""How many checkout sessions one survey asks for: those of the newest living subscriptions that
name no tenant.
"""
_MOST_UNPLACED: Final = 1000

logger = logging.getLogger(__name__)


class UnplacedSubscription(msgspec.Struct, frozen=True, rename="camel"):
    """A living subscription at the provider that counts for no tenant; ``org_id`` is the tenant
    that it names.
    """

    subscription_id: str
    customer_id: str | None
    org_id: str | None
    reason: str


@dataclass(eq=False)
class SubscriptionSurvey:
    """Takes the pages of the provider's list, then all tenants; of the tenants ``only`` these, if
    given.

    ``unplaced`` are the living subscriptions of no tenant, at most 1,000 of ``unplaced_number``;
    none with ``only``. The run that reads the list keeps here where the next one continues:
    ``after`` the last subscription of the pages that are done, or behind the list if it
    ``is_read``; the customers in ``asked`` of each tenant are compared. Methods raise the errors of
    `ProviderApi` and `DatabaseUnavailableError`.
    """

    database: Database
    provider: ProviderApi
    policy: BillingPolicy
    begun_at: datetime
    only: Collection[str] | None = None
    unplaced: list[UnplacedSubscription] = field(default_factory=list, init=False)
    asked: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set), init=False)
    after: str | None = field(default=None, init=False)
    is_read: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._owner_of: dict[str, str] = {}
        self._owners: set[str] = set()
        self._left_out: set[str] = set()
        self._checkouts_left = MOST_CHECKOUTS
        self._is_limit_logged = False

    @property
    def unplaced_number(self) -> int:
        return len(self._left_out)

    async def doubtful_on(self, page: Sequence[ListedSubscription]) -> list[LinkedTenant]:
        """Return the tenants that a page of the list says something else of than their state."""
        facts = await self._facts_of([each for each in page if not self._is_of_other_mode(each)])
        self._note_owners(facts)
        for unplaced in (*facts.unreadable_of_none(), *facts.living_of_none()):
            self._leave_out(unplaced)
        doubtful = self._doubtful_in(facts)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            found = await store.tenants_by_id(connection, doubtful)
        return [_with_listed(tenant, doubtful[tenant.id], facts.checkouts) for tenant in found]

    async def _facts_of(self, listed: Sequence[ListedSubscription]) -> "_PageFacts":
        """Find whose the subscriptions of a page are: by the links of customers, and by checkout
        sessions.
        """
        subscriptions = [each.subscription for each in listed if each.subscription is not None]
        customers = {each.customer_id for each in listed if each.customer_id is not None}
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            links = await ledger_store.tenants_of(connection, customers)
        checkouts = await self._checkouts_of(subscriptions, links)
        owners = {each.id: _owner(each, links, checkouts.get(each.id)) for each in subscriptions}
        named = sorted(set(filter(None, owners.values())))
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            accounts = await read_accounts(connection, named, self.policy)
        return _PageFacts(
            subscriptions,
            [each for each in listed if each.fault is not None],
            links,
            checkouts,
            owners,
            {account.tenant_id: account for account in accounts},
        )

    def _note_owners(self, facts: "_PageFacts") -> None:
        for subscription in facts.subscriptions:
            account = facts.living_account(subscription)
            if account is not None:
                self._owner_of[subscription.id] = account.tenant_id
                self._owners.add(account.tenant_id)

    def _doubtful_in(self, facts: "_PageFacts") -> Mapping[str, Sequence[ProviderSubscription]]:
        """Return the wanted tenants with a subscription that says something else than their state,
        or that cannot be read: asking about them says what is wrong.
        """
        doubtful = defaultdict[str, list[ProviderSubscription]](list)
        for owner in filter(None, map(facts.link, facts.unreadable)):
            doubtful[owner] = []
        for subscription in facts.subscriptions:
            account = facts.living_account(subscription)
            if account is not None and self._differs(subscription, account, facts):
                doubtful[account.tenant_id].append(subscription)
        return {owner: differing for owner, differing in doubtful.items() if self._is_wanted(owner)}

    def _differs(
        self,
        subscription: ProviderSubscription,
        account: BillingAccount,
        facts: "_PageFacts",
    ) -> bool:
        is_linked = facts.link(subscription) == account.tenant_id
        return may_differ(
            subscription,
            account,
            self.policy,
            is_linked=is_linked or subscription.id in facts.checkouts,
        )

    def _is_wanted(self, tenant_id: str) -> bool:
        return self.only is None or tenant_id in self.only

    async def doubtful_among(self, tenants: Sequence[LinkedTenant]) -> list[LinkedTenant]:
        """Return the tenants of which the list, which is read by now, has less than expected.

        They have a living subscription that is not listed as theirs, or were never compared and
        have none: the provider may not know their customer.
        """
        ids = [tenant.id for tenant in tenants]
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            accounts = await read_accounts(connection, ids, self.policy)
        lost = {account.tenant_id for account in accounts if self._has_lost(account)}
        return [tenant for tenant in tenants if tenant.id in lost or self._is_unlisted(tenant)]

    def _has_lost(self, account: BillingAccount) -> bool:
        return any(
            self._owner_of.get(each) != account.tenant_id for each in expected(account, self.policy)
        )

    def _is_unlisted(self, tenant: LinkedTenant) -> bool:
        is_new = tenant.compared_at is None and tenant.all_customers
        return bool(is_new) and tenant.id not in self._owners

    def _is_of_other_mode(self, listed: ListedSubscription) -> bool:
        """Whether PROVIDER_LIVEMODE excludes a subscription, as it does events."""
        modes = {self.policy.livemode, listed.livemode}
        return self.policy.ignores_other_mode and modes == {True, False}

    async def _checkouts_of(
        self, subscriptions: Sequence[ProviderSubscription], links: Mapping[str, str]
    ) -> dict[str, BillingEvent]:
        """Ask for the checkout sessions of living subscriptions whose tenant nothing else tells.

        Leaves out a session whose own event the ledger has: the operator has removed the link that
        it made.
        """
        unlinked = [each for each in subscriptions if _owner(each, links) is None]
        found = {}
        for each in self._take_within_limit(list(filter(gives_access_or_may, unlinked))):
            session = await self.provider.checkout_of(
                each.id,
                new_id("snapshot"),
                reference_links=self.policy.checkout_reference_links,
            )
            if session is not None and session.customer_id == each.customer_id:
                found[each.id] = session
        return await self._without_applied(found)

    def _take_within_limit(
        self, subscriptions: Sequence[ProviderSubscription]
    ) -> Sequence[ProviderSubscription]:
        """Take those of the subscriptions whose sessions this survey may still ask for, and log the
        limit once.
        """
        asked = subscriptions[: self._checkouts_left]
        if len(asked) < len(subscriptions) and not self._is_limit_logged:
            self._is_limit_logged = True
            logger.warning(
                "more than %d living subscriptions at the provider name no tenant and have a customer without a link: "
                "only the checkout sessions of the newest are asked for",
                MOST_CHECKOUTS,
            )
        self._checkouts_left -= len(asked)
        return asked

    async def _without_applied(
        self, sessions: Mapping[str, BillingEvent]
    ) -> dict[str, BillingEvent]:
        """Return the sessions, by subscription, except those of which the tenant's ledger has an
        event.

        And those that cannot link their customer, because only the buyer's reference names the
        tenant.
        """
        if not sessions:
            return {}
        tenants = {each.org_id or "" for each in sessions.values()}
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            applied = await store.subscriptions_of_checkouts(connection, tenants, sessions)
            known = await store.tenants_by_id(connection, tenants)
        named = {tenant.id: tenant for tenant in known}
        return {
            name: session
            for name, session in sessions.items()
            if (session.org_id, name) not in applied and _is_accepted(session, named)
        }

    def _leave_out(self, unplaced: UnplacedSubscription) -> None:
        if self.only is not None or unplaced.subscription_id in self._left_out:
            return
        self._left_out.add(unplaced.subscription_id)
        if len(self.unplaced) < _MOST_UNPLACED:
            self.unplaced.append(unplaced)


class _PageFacts(NamedTuple):
    """The subscriptions of a page that can be read and those that cannot, the tenants of their
    customers, and the checkout sessions where nothing else tells the tenant.

    ``owners`` has the tenant of each subscription that can be read, ``accounts`` these tenants,
    also ended ones.
    """

    subscriptions: Sequence[ProviderSubscription]
    unreadable: Sequence[ListedSubscription]
    links: Mapping[str, str]
    checkouts: Mapping[str, BillingEvent]
    owners: Mapping[str, str | None]
    accounts: Mapping[str, BillingAccount]

    def link(self, subscription: ProviderSubscription | ListedSubscription) -> str | None:
        """Return the tenant that a subscription's customer is linked to."""
        return self.links.get(subscription.customer_id or "")

    def living_account(self, subscription: ProviderSubscription) -> BillingAccount | None:
        """Return the tenant that a subscription belongs to, unless it has ended."""
        account = self.accounts.get(self.owners[subscription.id] or "")
        return None if account is None or account.deleted else account

    def unreadable_of_none(self) -> Iterator[UnplacedSubscription]:
        for each in self.unreadable:
            if self.link(each) is None:
                reason = f"it cannot be read: {each.fault}"
                yield UnplacedSubscription(each.id, each.customer_id, None, reason)

    def living_of_none(self) -> Iterator[UnplacedSubscription]:
        for each in self.subscriptions:
            if self.living_account(each) is None and gives_access_or_may(each):
                owner = self.owners[each.id]
                reason = _why_unplaced(owner, is_known=owner in self.accounts)
                yield UnplacedSubscription(each.id, each.customer_id, owner, reason)


def _owner(
    subscription: ProviderSubscription,
    links: Mapping[str, str],
    checkout: BillingEvent | None = None,
) -> str | None:
    """Return the tenant that a subscription belongs to: as its events do, else that of its checkout
    session.
    """
    by_customer = links.get(subscription.customer_id)
    return subscription.org_id or by_customer or (checkout.org_id if checkout else None)


def _is_accepted(session: BillingEvent, tenants: Mapping[str, LinkedTenant]) -> bool:
    tenant = tenants.get(session.org_id or "")
    return tenant is None or tenant.accepts(session)


def _why_unplaced(owner: str | None, *, is_known: bool) -> str:
    if owner is None:
        return "it names no tenant, and its customer is linked to none"
    return f"it names tenant {owner}, which {'has ended' if is_known else 'does not exist'}"


def _with_listed(
    tenant: LinkedTenant,
    subscriptions: Sequence[ProviderSubscription],
    checkouts: Mapping[str, BillingEvent],
) -> LinkedTenant:
    sessions = {
        each.customer_id: checkouts[each.id] for each in subscriptions if each.id in checkouts
    }
    begun_at = min((each.created for each in subscriptions), default=None)
    return tenant.with_listed(
        {each.customer_id for each in subscriptions},
        sessions.values(),
        begun_at,
    )
