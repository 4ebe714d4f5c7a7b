"""Checkout and customer portal: sessions at the provider to subscribe and to manage a
subscription.
"""

import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tenantry.audit.trail import RecordedChange
from tenantry.auth.changes import Changes
from tenantry.billing import checkout_store as store
from tenantry.billing import seats_store
from tenantry.billing.customer_links import give_up_customer
from tenantry.billing.provider_refusals import ProviderRefusals
from tenantry.common.clock import Clock, system_clock
from tenantry.db import idempotency_store as idempotency
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import TenantRow
from tenantry.domain.audit import Action, Author
from tenantry.domain.billing.seats import seats_wanted
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.checkout import (
    AddonOrder,
    CheckoutOrder,
    CheckoutRequest,
    CompletedCheckout,
    checkout_items,
    plan_to_sell,
    without_metered_quantities,
)
from tenantry.domain.errors import (
    CurrencyNotAvailableError,
    NoCustomerError,
    ProviderNotConfiguredError,
    ProviderRefusedError,
    SubscriptionExistsError,
    ValidationError,
)
from tenantry.domain.issuers import Issuers
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Plan
from tenantry.domain.portal import PortalAction
from tenantry.integrations.stripe.client import ProviderApi, ProviderCheckout

LONGEST_URL: Final = 2048
_SCOPE: Final = "billing:write"
_ALREADY_SUBSCRIBED: Final = (
    "The organization has a subscription that has not ended. "
    "Change or cancel it in the customer portal."
)
_COMPLETED_MEANWHILE: Final = (
    "Another checkout of the organization was completed, or its buyer is paying. "
    "Try again in a minute."
)
_NOT_SOLD_IN: Final = (
    "This is not sold in {}: see the currencies of each price in the list of plans."
)
_PAYS_IN_ANOTHER: Final = (
    "The organization pays in another currency already, and has one for all that it buys."
)

logger = logging.getLogger(__name__)


class CheckoutOptions(msgspec.Struct, frozen=True):
    """What the provider's page offers a buyer (CHECKOUT_PROMOTION_CODES, CHECKOUT_TAX)."""

    promotion_codes: bool = False
    tax: bool = False


STANDARD_OPTIONS: Final = CheckoutOptions()


class _StartedCheckout(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A checkout in the audit trail."""

    plan: str
    price: str
    quantity: int | None
    addons: tuple[AddonOrder, ...] = ()
    trial_days: int = 0
    currency: str | None = None


class _SessionUrl(msgspec.Struct, frozen=True):
    url: str


class _Buyer(NamedTuple):
    """What a checkout needs to know of its tenant.

    ``kept_url`` is the answer of the request that it repeats, ``earlier`` the session that ends
    before another one begins.
    """

    tenant: TenantRow
    kept_url: str | None = None
    active_members: int = 0
    had_trial: bool = True
    earlier: str | None = None


@dataclass(frozen=True)
class CheckoutService:
    """Creates checkout and portal sessions through the provider's API.

    It holds no database connection during a request to the provider. A request with an idempotency
    key is sent with a key derived from it, so that a repeated request creates no second session
    even after a crash. The provider detects repeated requests only if all parameters are the same,
    and ours may change: the tenant may be its customer by now. So the answer is kept here too, and
    the provider's key serves concurrent requests. A session is in the audit trail, without its
    URL, before the URL is returned.

    Members are users of the ``issuers``. Both methods raise `ProviderNotConfiguredError`,
    `ProviderUnavailableError`, `ProviderRefusedError`, `ValidationError`, the errors of idempotency
    and those of `Changes.begin`.
    """

    database: Database
    provider: ProviderApi | None
    policy: BillingPolicy
    base_url: str
    clock: Clock = system_clock
    _: KW_ONLY
    issuers: Issuers | None = None
    options: CheckoutOptions = STANDARD_OPTIONS
    outbox: Outbox | None = None

    @property
    def is_configured(self) -> bool:
        return self.provider is not None

    @property
    def _changes(self) -> Changes:
        return Changes(self.database, self.clock, read_by_checks=False, are_use=True)

    @property
    def _refusals(self) -> ProviderRefusals:
        return ProviderRefusals(self.database, self.clock)

    def sells_to(self, *, is_subscribed: bool) -> bool:
        """Whether a tenant may begin a subscription: only ``SUBSCRIPTIONS=each`` allows a second
        one.
        """
        return self.policy.is_each or not is_subscribed

    async def had_trial(self, principal: RequestPrincipal) -> bool:
        """Whether the caller's tenant had its trial, by its events; False if no plan has trials."""
        if not any(plan.trial_days for plan in self.policy.catalog.plans):
            return False
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await store.had_trial(connection, principal.org_id)

    async def create_checkout(
        self,
        principal: RequestPrincipal,
        author: Author,
        order: CheckoutOrder,
        *,
        success_url: str | None,
        cancel_url: str | None,
        claim: Claim | None,
    ) -> str:
        """Return the URL at which the caller's tenant subscribes to a plan of the catalog other
        than ``free``.

        The tenant's earlier session is ended before another one begins, so that of all at most one
        can be completed; with ``SUBSCRIPTIONS=each`` only of those with a trial. A plan with
        ``trial_days`` begins with a trial, once in a tenant's life. Raises
        `SubscriptionExistsError` too, also if the earlier session was completed and no event has
        told it, and `CurrencyNotAvailableError`.
        """
        provider, org_id = self._configured(), principal.org_id
        plan = plan_to_sell(order, self.policy.catalog)
        _check_urls(successUrl=success_url, cancelUrl=cancel_url)
        buyer = await self._find_buyer(principal, author, plan, claim)
        if buyer.kept_url is not None:
            return buyer.kept_url
        async with _in_our_words(order.currency), self._refusals.kept("checkout", tenant_id=org_id):
            items = checkout_items(order, self.policy.catalog, buyer.active_members)
            metered = await provider.metered_among([item.price_id for item in items])
            items = without_metered_quantities(items, order, metered)
            trial_days = await self._end_earlier(provider, plan, org_id, buyer)
            request = CheckoutRequest(
                tenant_id=org_id,
                items=items,
                customer_id=buyer.tenant.record.stripe_customer_id,
                customer_email=buyer.tenant.owner_email,
                success_url=success_url or self.base_url,
                cancel_url=cancel_url or self.base_url,
                currency=order.currency,
                trial_days=trial_days,
                promotion_codes=self.options.promotion_codes,
                tax=self.options.tax,
            )
            session = await self._begin(provider, request, provider_key(claim))
            of_plan = items[0]
            started = _StartedCheckout(
                order.plan,
                of_plan.price_id,
                of_plan.quantity,
                order.addons,
                request.trial_days,
                order.currency,
            )
            ended = buyer.earlier
            while other := await self._keep_checkout(
                author, started, session, ended, claim, request
            ):
                if await provider.end_checkout_session(other) is not None:
                    raise SubscriptionExistsError(_COMPLETED_MEANWHILE)
                ended = other
        return session.url

    async def _begin(
        self, provider: ProviderApi, request: CheckoutRequest, key: str | None
    ) -> ProviderCheckout:
        """Create a session at the provider, for another or a new customer if the provider does not
        have the tenant's any more.
        """
        try:
            return await provider.create_checkout_session(request, key)
        except ProviderRefusedError as refusal:
            customer_id = await self._customer_after(
                refusal, request.tenant_id, request.customer_id
            )
        request = msgspec.structs.replace(request, customer_id=customer_id)
        return await self._begin(provider, request, _next_key(key))

    async def create_portal(
        self,
        principal: RequestPrincipal,
        author: Author,
        *,
        return_url: str | None,
        claim: Claim | None,
        action: PortalAction | None = None,
    ) -> str:
        """Return the URL at which the caller's tenant manages its subscription, or does one action.
        Raises `NoCustomerError` too.
        """
        provider = self._configured()
        _check_urls(returnUrl=return_url)
        org_id = principal.org_id
        async with self._changes.begin(principal, author, _SCOPE) as change:
            connection = change.connection
            repeated = await idempotency.find(connection, claim, _SessionUrl, change.now)
            if repeated is not None:
                return repeated.url
            action = await self._with_member_seats(connection, org_id, action)
        customer_id, key = change.tenant.record.stripe_customer_id, provider_key(claim)
        async with self._refusals.kept("portal session", tenant_id=org_id):
            url: str | None = None
            while url is None:
                if customer_id is None:
                    raise NoCustomerError(
                        "The tenant is no customer of the payment provider: begin with a checkout."
                    )
                try:
                    url = await provider.create_portal_session(
                        customer_id=customer_id,
                        return_url=return_url or self.base_url,
                        idempotency_key=key,
                        action=action,
                    )
                except ProviderRefusedError as refusal:
                    customer_id = await self._customer_after(refusal, org_id, customer_id)
                    key = _next_key(key)
        # Without the lock of the tenant, which could keep the caller from the link that it has.
        async with self.database.transaction(of_tenant(org_id)) as connection:
            opened = RecordedChange(connection, author, org_id, self.clock())
            await opened.record(Action.BILLING_PORTAL, org_id, after=action)
            await idempotency.keep(connection, claim, _SessionUrl(url), opened.now)
        return url

    async def _customer_after(
        self, refusal: ProviderRefusedError, org_id: str, customer_id: str | None
    ) -> str | None:
        """Give up a customer that the provider does not have any more; return the one to use
        instead, None for a new one. Raises any other refusal, and this one if an event that is
        newer than our clock says that the provider has the customer.
        """
        if customer_id is None or not refusal.is_customer_missing:
            raise refusal
        logger.warning(
            "the payment provider has no customer %s any more: tenant %s gives it up",
            customer_id,
            org_id,
        )
        other = await give_up_customer(
            self.database, self.policy, org_id, customer_id, self.clock(), self.outbox
        )
        if other == customer_id:
            raise refusal
        return other

    async def _with_member_seats(
        self, connection: Connection, org_id: str, action: PortalAction | None
    ) -> PortalAction | None:
        """Return an action with the quantity of a plan whose seats follow the members."""
        if action is None or action.price_id is None:
            return action
        plan = self.policy.catalog.plan_at(action.price_id)
        if plan is None or not plan.seats_follow_members:
            return action
        members = await seats_store.count_active_members(connection, org_id, self.issuers)
        return msgspec.structs.replace(action, quantity=seats_wanted(members))

    def _configured(self) -> ProviderApi:
        if self.provider is None:
            raise ProviderNotConfiguredError(
                "The payment provider's API is not set up here: PROVIDER_SECRET_KEY is unset."
            )
        return self.provider

    async def _find_buyer(
        self, principal: RequestPrincipal, author: Author, plan: Plan, claim: Claim | None
    ) -> _Buyer:
        """Read what a checkout of the plan needs. Raises `SubscriptionExistsError`."""
        async with self._changes.begin(principal, author, _SCOPE) as change:
            connection, org_id, tenant = change.connection, change.org_id, change.tenant
            repeated = await idempotency.find(connection, claim, _SessionUrl, change.now)
            if repeated is not None:
                return _Buyer(tenant, repeated.url)
            is_sold = self.sells_to(is_subscribed=tenant.is_subscribed)
            if not is_sold and not await store.were_customers_deleted(connection, org_id):
                raise SubscriptionExistsError(_ALREADY_SUBSCRIBED)
            buyer = _Buyer(tenant)
            if plan.seats_follow_members:
                number = await seats_store.count_active_members(connection, org_id, self.issuers)
                buyer = buyer._replace(active_members=number)
            if plan.trial_days:
                buyer = buyer._replace(had_trial=await store.had_trial(connection, org_id))
            if not self.policy.is_each or not buyer.had_trial:
                buyer = buyer._replace(earlier=await store.last_checkout(connection, org_id))
            return buyer

    async def _end_earlier(
        self, provider: ProviderApi, plan: Plan, org_id: str, buyer: _Buyer
    ) -> int:
        """End the tenant's earlier session at the provider; return the days of trial that a new one
        offers.

        So at most one can be completed, whichever events have arrived. Raises
        `SubscriptionExistsError`.
        """
        completed: CompletedCheckout | None = None
        if buyer.earlier is not None:
            completed = await provider.end_checkout_session(buyer.earlier)
        if completed is not None and not self.sells_to(
            is_subscribed=completed.is_charged_to(org_id)
        ):
            raise SubscriptionExistsError(
                _ALREADY_SUBSCRIBED if completed.subscription else _COMPLETED_MEANWHILE
            )
        took_trial = completed is not None and completed.took_trial
        return 0 if buyer.had_trial or took_trial else plan.trial_days

    async def _keep_checkout(
        self,
        author: Author,
        started: _StartedCheckout,
        session: ProviderCheckout,
        ended: str | None,
        claim: Claim | None,
        request: CheckoutRequest,
    ) -> str | None:
        """Record a new session; return None, or the session that another checkout stored since the
        one that has ``ended``: only one may be open. Raises `NotFoundError` for a tenant that has
        ended since.
        """
        org_id = request.tenant_id
        async with self._changes.begin_in_tenant(org_id, author) as change:
            connection = change.connection
            if request.trial_days or not self.policy.is_each:
                other = await store.remember_checkout(connection, org_id, session.id, ended)
                if other is not None:
                    return other
            await change.record(Action.BILLING_CHECKOUT, org_id, after=started)
            await idempotency.keep(connection, claim, _SessionUrl(session.url), change.now)
        return None


@asynccontextmanager
async def _in_our_words(currency: str | None) -> AsyncIterator[None]:
    """Raise `CurrencyNotAvailableError` for the provider's refusal of a currency. Where the order
    names none, only the customer's can be the reason that a buyer can do something about.
    """
    try:
        yield
    except ProviderRefusedError as refusal:
        if refusal.currency_of == "customer":
            raise CurrencyNotAvailableError(_PAYS_IN_ANOTHER) from None
        if refusal.currency_of is not None and currency is not None:
            raise CurrencyNotAvailableError(_NOT_SOLD_IN.format(currency.upper())) from None
        raise


def provider_key(claim: Claim | None) -> str | None:
    """Return the idempotency key for the provider, unique among all callers; at most 255
    characters.
    """
    if claim is None:
        return None
    return (
        "tenantry-"
        + hashlib.sha256(f"{claim.principal}\x1f{claim.route}\x1f{claim.key}".encode()).hexdigest()
    )


def _next_key(key: str | None) -> str | None:
    """Return the idempotency key of the same request with another customer."""
    return None if key is None else f"{key}-"


def _check_urls(**urls: str | None) -> None:
    message = f"must be an http or https address of at most {LONGEST_URL} ASCII characters"
    if faults := [
        (name, message)
        for name, url in urls.items()
        if url is not None and not _is_web_address(url)
    ]:
        raise ValidationError(*faults)


def _is_web_address(url: str) -> bool:
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
