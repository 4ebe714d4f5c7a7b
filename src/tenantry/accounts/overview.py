"""Tenant overview: record, use of the plan, unpaid invoices, keys and billing events."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tenantry.accounts import invitations_store as invitations
from tenantry.accounts import members_store as members
from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.projects import MOST_COUNTED, count_for_page
from tenantry.audit import trail_store as trail
from tenantry.audit.trail_store import AuditFilter, ids_in
from tenantry.auth import api_keys_store
from tenantry.auth.api_keys_store import KeySummary
from tenantry.auth.rate_limits import subject_of_tenant
from tenantry.auth.rate_limits_store import count_requests
from tenantry.billing.batch_store import read_accounts
from tenantry.billing.grants import grants_in_force
from tenantry.billing.ledger_queries import PAYER_SCOPE, HistoryEntry, history_entry, is_link
from tenantry.billing.ledger_queries_store import read_entries
from tenantry.common.clock import Clock
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.pagination import Window
from tenantry.db.tenants_store import TenantUsers, get_tenant
from tenantry.domain.access import AccessEnding, Addons, endings, limits_of, plan_end
from tenantry.domain.api_keys import LEAK_SHOWN_FOR, ApiKey
from tenantry.domain.audit import AuditEvent
from tenantry.domain.billing.state import OWING, PAST_DUE, BillingPolicy, BillingState
from tenantry.domain.billing.subscription_access import LATE_END
from tenantry.domain.billing.subscription_overview import (
    Debt,
    SubscriptionLine,
    debts_of,
    subscription_lines,
)
from tenantry.domain.grants import GrantTerms
from tenantry.domain.issuers import Issuers
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import FREE, Count, Limits, count_up_to
from tenantry.domain.rate_limits import SLOTS
from tenantry.domain.scopes import covers
from tenantry.domain.tenants import Tenant, TenantRecord, access_of, to_tenant

_KEYS_SCOPE: Final = "api-keys:read"
_MOST_LEAKED: Final = 5
_MOST_EVENTS: Final = 50
_MOST_ENTRIES: Final = 20


class PlanUse(msgspec.Struct, frozen=True):
    """A tenant's use of its plan.

    ``projects`` are those of the principal's mode. ``members`` includes invited users and
    open invitations by mail, as the plan's limit does. ``api_keys`` are the active keys of both
    modes, which a plan limits; ``replaced_keys`` still work beside their successors. ``requests``
    is about the number of the last minute; None where the plan has no limit, because then requests
    are not counted.
    """

    projects: Count
    members: Count
    api_keys: Count
    replaced_keys: int
    requests: Count | None


class BillingOverview(msgspec.Struct, frozen=True):
    """A tenant, its limits now, its use of them, and the unpaid invoices of all its subscriptions.

    ``is_subscribed`` says whether it has a subscription that has not ended. ``addons`` are those
    that count, with their quantities, ``grants`` those of the operator. ``plan_end`` is when time
    ends the plan whose limits count, and ``plan_after`` the one that counts after the announced end
    of the subscription. ``subscriptions`` are empty with `SubscriptionRule.ANY`. The
    addresses of invoices are for principals who may pay: their pages show the payer's data, as
    payloads do.
    """

    tenant: Tenant
    is_subscribed: bool
    limits: Limits
    plan_end: AccessEnding | None
    plan_after: str
    addons: Addons
    grants: Sequence[GrantTerms]
    use: PlanUse
    debts: Sequence[Debt]
    subscriptions: Sequence[SubscriptionLine]


class Overview(msgspec.Struct, frozen=True):
    """The content of a tenant's first page; what the principal may not read is None or empty.

    ``leaked`` are keys that were recently reported as leaked and have no successor. ``events`` are
    the newest of billing, ``entries`` those of the audit trail, with the ``names`` of what they are
    about, by id.
    """

    billing: BillingOverview
    keys: KeySummary | None
    leaked: list[ApiKey]
    events: list[HistoryEntry]
    entries: list[AuditEvent]
    names: dict[str, str]


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
            keys = await self._count_keys(connection, principal)
            return await self._billing(connection, principal, keys)

    async def read(self, principal: RequestPrincipal) -> Overview:
        """Read the content of the tenant's first page. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            keys = await self._count_keys(connection, principal)
            billing = await self._billing(connection, principal, keys)
            leaked = await self._leaked_keys(connection, principal)
            events = await _events(connection, principal)
            entries, names = await _entries(connection, principal)
        return Overview(
            billing=billing,
            keys=keys if covers(principal.scopes, _KEYS_SCOPE) else None,
            leaked=leaked,
            events=events,
            entries=entries,
            names=names,
        )

    async def _count_keys(self, connection: Connection, principal: RequestPrincipal) -> KeySummary:
        return await api_keys_store.summarize(connection, principal.org_id, self.clock())

    async def _leaked_keys(
        self, connection: Connection, principal: RequestPrincipal
    ) -> list[ApiKey]:
        if not covers(principal.scopes, _KEYS_SCOPE):
            return []
        now = self.clock()
        since = now - LEAK_SHOWN_FOR
        org_id = principal.org_id
        return await api_keys_store.leaked_since(connection, org_id, now, since, _MOST_LEAKED)

    async def _billing(
        self, connection: Connection, principal: RequestPrincipal, keys: KeySummary
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
            members_used = await invitations.count_open(connection, org_id, now)
            members_used += await members.count_current(
                connection,
                TenantUsers(org_id, self.issuers),
                MOST_COUNTED + 1,
            )
        use = PlanUse(
            projects=await count_for_page(connection, principal),
            members=count_up_to(members_used, MOST_COUNTED),
            api_keys=Count(keys.active),
            replaced_keys=keys.replaced,
            requests=None if requests is None else Count(requests),
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
        coming = endings(found.record.access, now.timestamp())
        return BillingOverview(
            tenant,
            found.is_subscribed,
            limits,
            plan_end(coming),
            _plan_after(found.record, access.plan, coming),
            access.addons,
            [each.terms for each in grants_in_force(account, now)],
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


def _plan_after(record: TenantRecord, plan: str, coming: Iterable[AccessEnding]) -> str:
    """Return the plan whose limits count after the announced end of the subscription; ``plan`` is
    that of now.
    """
    if record.access is None:
        return FREE  # the subscription alone gives access
    last = math.inf if record.ends_at is None else record.ends_at + LATE_END
    return [plan, *(ending.after.plan for ending in coming if ending.second <= last)][-1]


async def _events(connection: Connection, principal: RequestPrincipal) -> list[HistoryEntry]:
    if not covers(principal.scopes, "billing:read"):
        return []
    newest = await read_entries(connection, principal.org_id, _MOST_EVENTS, None)
    return [history_entry(record) for record in newest]


async def _entries(
    connection: Connection, principal: RequestPrincipal
) -> tuple[list[AuditEvent], dict[str, str]]:
    """Return the newest entries of the audit trail, and the names of what they are about."""
    if not covers(principal.scopes, "audit:read"):
        return [], {}
    org_id = principal.org_id
    page = await trail.read_page(connection, org_id, AuditFilter(), Window(_MOST_ENTRIES))
    return page.data, await trail.read_names(connection, org_id, ids_in(page.data))
