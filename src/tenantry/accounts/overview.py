"""Tenant overview: record, use of the plan, unpaid invoices, keys and billing events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tenantry.accounts import members_store as members
from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.projects import MOST_COUNTED, count_for_page
from tenantry.auth import api_keys_store
from tenantry.auth.rate_limits import subject_of_tenant
from tenantry.auth.rate_limits_store import count_requests
from tenantry.billing import ledger_queries_store as billing
from tenantry.billing.accounts_store import read_accounts
from tenantry.billing.ledger_queries import PAYER_SCOPE, BillingEventView, is_link, view
from tenantry.common.clock import Clock
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import get_tenant
from tenantry.domain.access import Addons, limits_of
from tenantry.domain.api_keys import LEAK_SHOWN_FOR, ApiKey, KeyState
from tenantry.domain.billing.state import OWING, PAST_DUE, BillingPolicy, BillingState
from tenantry.domain.billing.subscription_overview import (
    Debt,
    SubscriptionLine,
    debts_of,
    subscription_lines,
)
from tenantry.domain.issuers import Issuers
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Count, Limits, count_up_to
from tenantry.domain.rate_limits import SLOTS
from tenantry.domain.scopes import covers
from tenantry.domain.tenants import Tenant, access_of, to_tenant

_MOST_KEYS: Final = 5
_MOST_EVENTS: Final = 5


class PlanUse(msgspec.Struct, frozen=True):
    """A tenant's use of its plan.

    ``projects`` are those of the principal's mode. ``members`` includes invited users. ``api_keys``
    are the active keys of both modes, which a plan limits; ``replaced_keys`` still work beside
    their successors. ``requests`` is about the number of the last minute; None where the plan has
    no limit, because then requests are not counted.
    """

    projects: Count
    members: Count
    api_keys: Count
    replaced_keys: int
    requests: Count | None


class BillingOverview(msgspec.Struct, frozen=True):
    """A tenant, its limits now, its use of them, and the unpaid invoices of all its subscriptions.

    ``is_subscribed`` says whether it has a subscription that has not ended. ``addons`` are those
    that count, with their quantities. ``subscriptions`` are empty with `SubscriptionRule.ANY`. The
    addresses of invoices are for principals who may pay: their pages show the payer's data, as
    payloads do.
    """

    tenant: Tenant
    is_subscribed: bool
    limits: Limits
    addons: Addons
    use: PlanUse
    debts: Sequence[Debt]
    subscriptions: Sequence[SubscriptionLine]


class Overview(msgspec.Struct, frozen=True):
    """The content of a tenant's first page; empty where the principal lacks the scope.

    ``keys`` are active, the last used first; ``expiring`` is the number of active keys that expire
    soon; ``leaked`` are keys that were recently reported as leaked and have no successor.
    ``has_used_key`` says whether any key, also a revoked one, was ever used.
    """

    billing: BillingOverview
    keys: list[ApiKey]
    expiring: int
    leaked: list[ApiKey]
    has_used_key: bool
    events: list[BillingEventView]


@dataclass(frozen=True)
class OverviewService:
    """Reads the overview of the principal's tenant. ``issuers`` are those whose users are
    members.
    """

    database: Database
    issuers: Issuers | None
    policy: BillingPolicy
    clock: Clock

    async def of_billing(self, principal: RequestPrincipal) -> BillingOverview:
        """Read the tenant's plan, its use and its subscriptions. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await self._billing(connection, principal)

    async def read(self, principal: RequestPrincipal) -> Overview:
        """Read the content of the tenant's first page. Raises `NotFoundError`."""
        now = self.clock()
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            found = await self._billing(connection, principal)
            keys = list[ApiKey]()
            leaked = list[ApiKey]()
            expiring = 0
            if covers(principal.scopes, "api-keys:read"):
                keys = await api_keys_store.recently_used(
                    connection,
                    org_id,
                    now,
                    _MOST_KEYS,
                )
                expiring = await api_keys_store.count(
                    connection,
                    org_id,
                    now,
                    KeyState.EXPIRING,
                )
                leaked = await api_keys_store.leaked_since(
                    connection,
                    org_id,
                    now,
                    now - LEAK_SHOWN_FOR,
                    _MOST_KEYS,
                )
            has_used_key = await api_keys_store.is_any_used(connection, org_id)
            rows = []
            if covers(principal.scopes, "billing:read"):
                rows = await billing.read_entries(
                    connection,
                    org_id,
                    _MOST_EVENTS,
                    None,
                )
        return Overview(
            found,
            keys,
            expiring,
            leaked,
            has_used_key,
            [view(row) for row in rows[:_MOST_EVENTS]],
        )

    async def _billing(
        self, connection: Connection, principal: RequestPrincipal
    ) -> BillingOverview:
        now = self.clock()
        org_id = principal.org_id
        catalog = self.policy.catalog
        found = await get_tenant(connection, org_id, even_ended=True)
        requests = None
        access = access_of(found.record, catalog, now)
        limits = limits_of(access, catalog)
        if limits.requests_per_minute is not None:
            since = int(now.timestamp()) - SLOTS
            requests = await count_requests(connection, subject_of_tenant(org_id), since)
        members_used = 0
        if self.issuers is not None:
            members_used = await members.count_current(
                connection,
                org_id,
                self.issuers,
                MOST_COUNTED + 1,
            )
        use = PlanUse(
            await count_for_page(connection, principal),
            count_up_to(members_used, MOST_COUNTED),
            Count(
                await api_keys_store.count(
                    connection,
                    org_id,
                    now,
                    KeyState.ACTIVE,
                )
            ),
            await api_keys_store.count(
                connection,
                org_id,
                now,
                KeyState.REPLACED,
            ),
            None if requests is None else Count(requests),
        )
        [account] = await read_accounts(connection, [org_id], self.policy)
        states = account.states()
        debts = await self._debts(
            connection,
            principal,
            states,
            found.record.subscription_status,
        )
        lines = list[SubscriptionLine]()
        if self.policy.is_each and account.has_status:
            lines = subscription_lines(
                states,
                self.policy,
                now.timestamp(),
                account.grants(),
            )
        tenant = to_tenant(found.record, catalog, now)
        return BillingOverview(
            tenant,
            found.is_subscribed,
            limits,
            access.addons,
            use,
            debts,
            lines,
        )

    async def _debts(
        self,
        connection: Connection,
        principal: RequestPrincipal,
        states: Sequence[BillingState],
        status: str,
    ) -> Sequence[Debt]:
        statuses = {state.subscription_status for state in states}
        if statuses.isdisjoint(OWING):
            if status != PAST_DUE:
                return ()
            states = [BillingState(subscription_status=status)]  # SUBSCRIPTIONS has changed since
        invoices = await tenants.failed_invoices(connection, principal.org_id)
        debts = debts_of(
            states,
            invoices,
            self.policy,
            self.clock().timestamp(),
        )
        may_pay = covers(principal.scopes, PAYER_SCOPE)
        return [
            debt if may_pay and is_link(debt.url) else msgspec.structs.replace(debt, url=None)
            for debt in debts
        ]
