"""Tenants of the service: their records, their ledgers, and what events have changed."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import httpx2
import msgspec

from tenantry.common.secret import Secret
from tenantry_sdk import AsyncTenantry, BillingEvent, Tenant
from tenantry_sdk.errors import NotFoundError, PermissionDeniedError

_CHANGED_BY_EVENTS: Final = (
    "plan",
    "subscription_status",
    "current_period_end",
    "cancel_at_period_end",
    "cancel_at",
    "ends_at",
    "seats",
    "access",
    "stripe_customer_id",
)
_NEWEST: Final = 100


class TenantView(msgspec.Struct, frozen=True):
    """A tenant's record and its ledger, newest first: None where the credentials cannot read it.

    ``problem`` says why the record is missing. Of a long ledger only the newest events may be here.
    """

    tenant: Tenant | None = None
    ledger: Sequence[BillingEvent] | None = None
    problem: str = ""


class _Export(msgspec.Struct, rename="camel"):
    tenant: Tenant
    billing_events: list[BillingEvent]


class ServiceReader:
    """Reads tenants with the tenant's own API key, or else with the operator's token.

    The methods raise the errors of the SDK.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        base: str,
        *,
        api_key: Secret | None = None,
        operator: Secret | None = None,
    ) -> None:
        sdk = partial(AsyncTenantry, base_url=base, http_client=client, retries=0)
        self.operator = None if operator is None else sdk(operator.reveal())
        """The service as the operator, if there is a token."""
        self._own = None if api_key is None else sdk(api_key.reveal())

    async def own_tenant(self) -> str | None:
        """Return the id of the API key's tenant; None without a key."""
        return None if self._own is None else (await self._own.auth.whoami()).org_id

    async def tenant_view(self, tenant_id: str) -> TenantView:
        try:
            if self._own is not None and await self.own_tenant() == tenant_id:
                return await _own_view(self._own, tenant_id)
            if self.operator is not None:
                return await _operators_view(self.operator, tenant_id)
        except NotFoundError:
            return TenantView(
                problem=f"There is no tenant {tenant_id}. "
                "The service parks its events until the tenant exists."
            )
        return TenantView(
            problem="The tenant cannot be shown: "
            "TENANTRY_API_KEY is not a key of this tenant, and OPERATOR_TOKEN is not set."
        )


async def _own_view(sdk: AsyncTenantry, tenant_id: str) -> TenantView:
    """Return what the tenant's own key may read."""
    try:
        tenant = await sdk.tenants.get(tenant_id)
        newest = await sdk.billing.events.list(limit=_NEWEST).first_page()
    except PermissionDeniedError as error:
        return TenantView(problem=f"The tenant cannot be shown: {error.detail}")
    return TenantView(tenant, newest.data)


async def _operators_view(sdk: AsyncTenantry, tenant_id: str) -> TenantView:
    response = await sdk.request("GET", f"/api/v1/tenants/{tenant_id}/export")
    export: _Export = response.parse(_Export)
    return TenantView(export.tenant, export.billing_events)


class FieldChange(msgspec.Struct, frozen=True):
    field: str
    before: object
    after: object


def changes(before: Tenant | None, after: Tenant | None) -> list[FieldChange]:
    """Return the fields of a tenant's record that events have changed; none for an unknown
    record.
    """
    if before is None or after is None:
        return []
    labels = dict(zip(Tenant.__struct_fields__, Tenant.__struct_encode_fields__, strict=True))
    found = [
        FieldChange(labels[name], _value(before, name), _value(after, name))
        for name in _CHANGED_BY_EVENTS
    ]
    return [change for change in found if change.before != change.after]


def _value(tenant: Tenant, name: str) -> object:
    """Return a field of the record; of the access its state, because the plan and status say the
    rest.
    """
    return tenant.access.state if name == "access" else getattr(tenant, name)
