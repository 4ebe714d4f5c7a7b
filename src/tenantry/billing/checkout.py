"""Checkout and customer portal: sessions at the provider to subscribe and to manage a
subscription.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from tenantry.audit import trail as audit
from tenantry.auth.authentication import lock_and_reauthorize
from tenantry.common.clock import Clock, system_clock
from tenantry.db import idempotency_store as idempotency
from tenantry.db.connection import of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.tenants_store import TenantRow
from tenantry.domain.audit import Action, Author
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import (
    NoCustomerError,
    ProviderNotConfiguredError,
    SubscriptionExistsError,
    ValidationError,
)
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import FREE, Catalog
from tenantry.integrations.stripe.client import ProviderApi

LONGEST_URL: Final = 2048
_SCOPE: Final = "billing:write"
_ALREADY_SUBSCRIBED: Final = (
    "The organization has a subscription that has not ended. "
    "Change or cancel it in the customer portal."
)


class _CheckoutPlan(msgspec.Struct, frozen=True):
    plan: str


class _SessionUrl(msgspec.Struct, frozen=True):
    url: str


@dataclass(frozen=True)
class CheckoutService:
    """Creates checkout and portal sessions through the provider's API.

    It holds no database connection during a request to the provider. A request with an idempotency
    key is sent with a key derived from it, so that a repeated request creates no second session
    even after a crash. A session is in the audit trail before its URL is returned.

    Both methods raise `ProviderNotConfiguredError`, `ProviderUnavailableError`,
    `ProviderRefusedError`, `ValidationError`, the errors of idempotency and those of
    `lock_and_reauthorize`.
    """

    database: Database
    provider: ProviderApi | None
    policy: BillingPolicy
    base_url: str
    clock: Clock = system_clock

    @property
    def is_configured(self) -> bool:
        return self.provider is not None

    def sells_to(self, *, is_subscribed: bool) -> bool:
        """Whether a tenant may begin a subscription: only ``SUBSCRIPTIONS=each`` allows a second
        one.
        """
        return self.policy.is_each or not is_subscribed

    async def create_checkout(
        self,
        principal: RequestPrincipal,
        author: Author,
        *,
        plan: str,
        success_url: str | None,
        cancel_url: str | None,
        claim: Claim | None,
    ) -> str:
        """Return the URL at which the caller's tenant subscribes to a plan of the catalog other
        than ``free``.

        Raises `SubscriptionExistsError` too.
        """
        provider = self._configured()
        price_id = _price_of_new_subscriber(self.policy.catalog, plan)
        _check_urls(successUrl=success_url, cancelUrl=cancel_url)

        async def create(tenant: TenantRow) -> str:
            if not self.sells_to(is_subscribed=tenant.is_subscribed):
                raise SubscriptionExistsError(_ALREADY_SUBSCRIBED)
            return await provider.create_checkout_session(
                tenant_id=tenant.record.id,
                price_id=price_id,
                customer_id=tenant.record.stripe_customer_id,
                customer_email=tenant.owner_email,
                success_url=success_url or self.base_url,
                cancel_url=cancel_url or self.base_url,
                idempotency_key=provider_key(claim),
            )

        return await self._once(
            principal, author, Action.BILLING_CHECKOUT, claim, create, _CheckoutPlan(plan)
        )

    async def create_portal(
        self,
        principal: RequestPrincipal,
        author: Author,
        *,
        return_url: str | None,
        claim: Claim | None,
    ) -> str:
        """Return the URL at which the caller's tenant manages its subscription. Raises
        `NoCustomerError` too.
        """
        provider = self._configured()
        _check_urls(returnUrl=return_url)

        async def create(tenant: TenantRow) -> str:
            customer_id = tenant.record.stripe_customer_id
            if customer_id is None:
                raise NoCustomerError(
                    "The tenant is no customer of the payment provider yet: begin with a checkout."
                )
            return await provider.create_portal_session(
                customer_id=customer_id,
                return_url=return_url or self.base_url,
                idempotency_key=provider_key(claim),
            )

        return await self._once(principal, author, Action.BILLING_PORTAL, claim, create)

    def _configured(self) -> ProviderApi:
        if self.provider is None:
            raise ProviderNotConfiguredError(
                "The payment provider's API is not set up here: PROVIDER_SECRET_KEY is unset."
            )
        return self.provider

    async def _once(
        self,
        principal: RequestPrincipal,
        author: Author,
        action: Action,
        claim: Claim | None,
        create: Callable[[TenantRow], Awaitable[str]],
        details: _CheckoutPlan | None = None,
    ) -> str:
        """Return the URL of a new session of the caller's tenant, or that which the same request
        got before.

        The provider detects repeated requests only if all parameters are the same, and ours may
        change: the tenant may be its customer by now. So it handles only concurrent requests. The
        audit trail has no URL.
        """
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            tenant, _, _ = await lock_and_reauthorize(connection, principal, _SCOPE, self.clock)
            kept = (
                await idempotency.find(connection, claim, _SessionUrl, self.clock())
                if claim
                else None
            )
        if kept is not None:
            return kept.url
        url, now = await create(tenant), self.clock()
        async with self.database.transaction(of_tenant(org_id)) as connection:
            await audit.record(connection, author, action, (org_id, org_id), now, after=details)
            if claim is not None:
                await idempotency.keep(connection, claim, _SessionUrl(url), now)
        return url


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


def _price_of_new_subscriber(catalog: Catalog, plan_id: str) -> str:
    """Return the plan's first price. Raises `ValidationError` for a plan that cannot be bought."""
    if plan_id == FREE:
        raise ValidationError(("plan", f"{FREE} needs no checkout"))
    plan = next((plan for plan in catalog.plans if plan.id == plan_id), None)
    if plan is None:
        raise ValidationError(("plan", "is not in the plan catalog"))
    if not plan.stripe_price_ids:
        raise ValidationError(("plan", "has no price in the plan catalog"))
    return plan.stripe_price_ids[0]


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
