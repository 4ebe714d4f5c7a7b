"""The `tenantry` fixture's object."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Final, Self

import httpx2

from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.plans import FREE
from tenantry_devkit.inbox import Mail
from tenantry_devkit.simulator import Subscription
from tenantry_devkit.testing.errors import Credential, Variables, bearer
from tenantry_devkit.testing.provider import WEBHOOK, Events, Provider
from tenantry_devkit.testing.service import RunningService
from tenantry_devkit.testing.tenants import NO_CLAIMS, TOKEN_LIFETIME, Key, Tenant, TenantContext

_SEED_BITS: Final = 64


class Tenantry:
    """The service as a test uses it, with its own tenants, and a payment provider with its own clock.

    Use it as a context manager. The service has one payment provider at a time: that of the newest open object.
    """

    def __init__(self, service: RunningService) -> None:
        values, catalog = service.values, service.settings.billing.catalog
        self.service = service
        self.base_url = service.base_url
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        self.environment = service.environment
        """Environment variables for an application under test."""
        self._clients = ExitStack()
        http = self.client()
        self._context = TenantContext(
            http, values["OPERATOR_TOKEN"], service.issuer, service.database, service.environment,
            lambda tenant, within: self.mails(tenant, within=within),
        )  # fmt: skip
        self._tenants: dict[str, Tenant] = {}
        secret = Credential(values["PROVIDER_WEBHOOK_SECRET"].split(",")[0].strip())
        self.provider = Provider(
            service.provider_server,
            catalog,
            secret_key=values["PROVIDER_SECRET_KEY"],
            seed=secrets.randbits(_SEED_BITS),
            endpoint=f"{service.base_url}{WEBHOOK}",
            endpoint_secret=secret,
            enabled_events=HANDLED_TYPES,
        )
        """The simulated payment provider, attached to the service."""
        self.events = Events(http, secret, self.provider, self.price_of)
        """Signed events about tenants, one at a time."""

    def __repr__(self) -> str:
        return f"<Tenantry {self.base_url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.close()
        self.provider.detach()

    def tenant(
        self,
        name: str = "Acme",
        *,
        plan: str = FREE,
        trial_days: int = 0,
        tenant_id: str | None = None,
        owner_email: str | None = None,
        linked: bool = True,
    ) -> Tenant:
        """Create a tenant with an owner.

        On a plan other than ``free`` it has subscribed at the simulated provider, by `subscribe`. Without ``linked``
        the service does not know its customer yet.
        """
        tenant_id = tenant_id or f"org-{secrets.token_hex(8)}"
        tenant = Tenant(tenant_id, name, owner_email or f"owner@{tenant_id}.example", self._context)
        if plan != FREE:
            self._price(plan)  # fails early
        tenant.create(linked=linked)
        self._tenants[tenant.id] = tenant
        if linked:
            self.provider.customer(tenant.customer, email=tenant.owner_email, name=name)
        if plan != FREE:
            self.subscribe(tenant, plan, trial_days=trial_days)
        return tenant

    def subscribe(self, tenant: Tenant, plan: str, *, trial_days: int = 0) -> Subscription:
        """Subscribe a tenant to a plan at the simulated provider, and deliver the events.

        Raises `ValueError` for a plan that is not in the catalog, or has no price.
        """
        price = self._price(plan)
        if tenant.customer not in self.provider.customers:
            self.provider.customer(tenant.customer, email=tenant.owner_email, name=tenant.name)
        subscription = self.provider.subscribe(
            tenant.customer, price, metadata={"orgId": tenant.id}, trial_days=trial_days
        )
        self.provider.deliver()
        return subscription

    def token(
        self,
        user: str,
        tenant: Tenant | str | None = None,
        *,
        role: str | None = "member",
        scope: str | None = None,
        expires_in: timedelta | float = TOKEN_LIFETIME,
        email: str | None = None,
        claims: Mapping[str, Any] = NO_CLAIMS,
    ) -> Credential:
        """Return an access token of a user, with a tenant and a role in it (owner, admin, member, or None).

        ``scope`` narrows the role (``"projects:read"``). ``expires_in`` is a time or seconds; below -30 s, the
        service's tolerance, the token has expired. ``email`` is a verified address. ``claims`` override others.
        """
        org_id = tenant.id if isinstance(tenant, Tenant) else tenant
        return self.service.issuer.token(
            user, org_id, role=role if org_id else None, scope=scope, expires_in=expires_in, email=email, claims=claims
        )

    def client(self, credential: Key | str | None = None) -> httpx2.Client:
        """Return an HTTP client of the service that sends this key or token; it is closed after the test."""
        if isinstance(credential, Key):
            credential = credential.secret
        return self._clients.enter_context(
            self.service.client(Variables({}) if credential is None else bearer(credential))
        )

    def mails(self, to: Tenant | str | None = None, *, within: float = 10.0) -> Sequence[Mail]:
        """Return the mails to the owners of this test's tenants so far, oldest first.

        ``to`` is one tenant, or an owner's address. It waits until all requested mails have arrived, and not
        at all if there are none. Raises `MailError` after ``within`` seconds.
        """
        wanted = [tenant.id for tenant in self._tenants.values() if to is None or to in (tenant, tenant.owner_email)]
        return self.service.mails.of(wanted, within=within)

    def price_of(self, plan: str) -> str | None:
        """Return the plan's price at the provider, if it has one."""
        plans = {each.id: each for each in self.service.settings.billing.catalog.plans}
        return next(iter(plans[plan].stripe_price_ids), None) if plan in plans else None

    def _price(self, plan: str) -> str:
        price = self.price_of(plan)
        if price is None:
            plans = ", ".join(each.id for each in self.service.settings.billing.catalog.plans)
            raise ValueError(f"there is no plan {plan!r} with a price: the catalog has {plans}")
        return price
