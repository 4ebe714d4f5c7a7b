"""The `tenantry` fixture's object."""

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self, Unpack

import httpx2

from tenantry.domain.plans import FREE
from tenantry_devkit.inbox import Mail
from tenantry_devkit.simulator import Subscription
from tenantry_devkit.testing.errors import Credential, Variables, bearer
from tenantry_devkit.testing.provider import Events, Provider
from tenantry_devkit.testing.service import RunningService, TokenOptions
from tenantry_devkit.testing.tenants import Key, SuiteTenant


class SuiteTenantry:
    """The service as a test uses it, with its own tenants, and a payment provider with its own
    clock.

    Use it as a context manager. The service has one payment provider at a time: that of the newest
    open object.
    """

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.base_url = service.base_url
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        self.environment = service.environment
        """Environment variables for an application under test."""
        self._clients = ExitStack()
        self._tenants: dict[str, SuiteTenant] = {}
        self.provider = Provider(service)
        """The simulated payment provider, attached to the service."""
        self.events = Events(
            service,
            self.client(),
            self.provider,
        )
        """Signed events about tenants, one at a time."""

    def __repr__(self) -> str:
        return f"<SuiteTenantry {self.base_url}>"

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
    ) -> SuiteTenant:
        """Create a tenant with an owner.

        On a plan other than ``free`` it has subscribed at the simulated provider, by `subscribe`.
        Without ``linked`` the service does not know its customer yet.
        """
        tenant_id = tenant_id or f"org-{secrets.token_hex(8)}"
        tenant = SuiteTenant(
            self.service,
            tenant_id,
            name,
            owner_email or f"owner@{tenant_id}.example",
        )
        if plan != FREE:
            self._price(plan)  # fails early
        tenant.create(linked=linked)
        self._tenants[tenant.id] = tenant
        if linked:
            self.provider.customer(
                tenant.customer,
                email=tenant.owner_email,
                name=name,
            )
        if plan != FREE:
            self.subscribe(tenant, plan, trial_days=trial_days)
        return tenant

    def subscribe(self, tenant: SuiteTenant, plan: str, *, trial_days: int = 0) -> Subscription:
        """Subscribe a tenant to a plan at the simulated provider, and deliver the events.

        A tenant that has a subscription gets a further one.

        Raises `ValueError` for a plan that is not in the catalog, or has no price.
        """
        price, metadata = self._price(plan), {"orgId": tenant.id}
        if tenant.customer not in self.provider.customers:
            self.provider.customer(
                tenant.customer,
                email=tenant.owner_email,
                name=tenant.name,
            )
        subscription = self.provider.subscribe(
            tenant.customer,
            price,
            metadata=metadata,
            trial_days=trial_days,
        )
        self.provider.deliver()
        return subscription

    def token(
        self,
        user: str,
        tenant: SuiteTenant | str | None = None,
        *,
        role: str | None = "member",
        **options: Unpack[TokenOptions],
    ) -> Credential:
        """Return an access token of a user, with a tenant and a role in it (owner, admin, member,
        or None).
        """
        org_id = tenant.id if isinstance(tenant, SuiteTenant) else tenant
        return self.service.token(
            user,
            org_id,
            role=role if org_id else None,
            **options,
        )

    def client(self, credential: Key | str | None = None) -> httpx2.Client:
        """Return an HTTP client of the service that sends this key or token; it is closed after the
        test.
        """
        if isinstance(credential, Key):
            credential = credential.secret
        return self._clients.enter_context(
            self.service.client(Variables({}) if credential is None else bearer(credential))
        )

    def mails(self, to: SuiteTenant | str | None = None, *, within: float = 10.0) -> Sequence[Mail]:
        """Return the mails to the owners of this test's tenants so far, oldest first.

        ``to`` is one tenant, or an owner's address. It waits until all requested mails have
        arrived, and not at all if there are none. Raises `MailError` after ``within`` seconds.
        """
        wanted = [
            tenant.id
            for tenant in self._tenants.values()
            if to is None or to in (tenant, tenant.owner_email)
        ]
        return self.service.mails.of(wanted, within=within)

    def _price(self, plan: str) -> str:
        price = self.service.price_of(plan)
        if price is None:
            plans = ", ".join(each.id for each in self.service.settings.billing.catalog.plans)
            raise ValueError(f"there is no plan {plan!r} with a price: the catalog has {plans}")
        return price
