"""Routes across tenants, for the operator: tenants, API keys, and events that belong to no
tenant.
"""

from typing import Annotated, Final

from litestar import delete, get
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter

from tenantry.accounts.tenant_directory_store import TenantFilter
from tenantry.api.api_keys import KeyId
from tenantry.api.guards import ChangeAuthor, needs_operator, raises
from tenantry.api.parameters import DEFAULT_LIMIT, Cursor, Limit, nul_faults
from tenantry.api.services import Services
from tenantry.api.tenants import TenantId
from tenantry.billing.unplaced_events import UnplacedEvent
from tenantry.db.pagination import Page
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.errors import ValidationError
from tenantry.domain.plans import AccessState
from tenantry.domain.tenants import ManagedTenant

PATH: Final = "/api/v1/operator"

WantedTenants = NamedDependency[TenantFilter]


def tenant_filter(
    search: Annotated[
        str | None,
        QueryParameter(
            name="search",
            max_length=200,
            description="Only tenants with this in their id, name, owner's address, or the id of a customer; upper and "
            "lower case are the same.",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        QueryParameter(
            name="plan", max_length=64, description="Only tenants whose `plan` is this."
        ),
    ] = None,
    status: Annotated[
        str | None,
        QueryParameter(
            name="status",
            max_length=64,
            description="Only tenants whose `subscriptionStatus` is this.",
        ),
    ] = None,
    access: Annotated[
        AccessState | None,
        QueryParameter(
            name="access", description="Only tenants whose `access.state` is this at the moment."
        ),
    ] = None,
    suspended: Annotated[
        bool | None,
        QueryParameter(name="suspended", description="Only suspended tenants, or only the others."),
    ] = None,
) -> TenantFilter:
    """Make the filter of a request's parameters. Raises `ValidationError`."""
    if faults := nul_faults({"search": search, "plan": plan, "status": status}):
        raise ValidationError(*faults)
    return TenantFilter(
        search or None,
        plan,
        status,
        access,
        suspended,
    )


_operator = needs_operator()


@get(
    PATH + "/tenants",
    guards=[_operator],
    dependencies={"wanted": Provide(tenant_filter, sync_to_thread=False)},
    summary="List all tenants (operator)",
)
async def list_all_tenants(
    services: Services, wanted: WantedTenants, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[ManagedTenant]:
    """List the tenants that match every given condition, newest first. Ended tenants are left
    out.
    """
    return await services.directory.list_page(wanted, limit, cursor)


@get(PATH + "/tenants/{tenant_id:str}", guards=[_operator], summary="Get any tenant (operator)")
async def get_any_tenant(services: Services, tenant_id: TenantId) -> ManagedTenant:
    """Return a tenant that has not ended."""
    return await services.tenants.show(tenant_id)


@get(PATH + "/api-keys", guards=[_operator], summary="Find API keys of all tenants (operator)")
async def list_any_api_keys(
    services: Services,
    search: Annotated[
        str,
        QueryParameter(
            name="search",
            max_length=200,
            description="A key's id, its first or last four characters, or both, such as `svc_live_AbCd...wxyz`; "
            "upper and lower case are the same. Never send a whole secret.",
            schema_extra={"example": "svc_live_4fGh...x9Qz"},
        ),
    ],
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[ApiKey]:
    """List the keys that the text means, newest first, without their secrets. `orgId` is the
    tenant of each.
    """
    return await services.operator_keys.search(search, limit, cursor)


@delete(
    PATH + "/api-keys/{key_id:str}",
    guards=[_operator],
    summary="Revoke any API key (operator)",
    opt=raises("last_owner"),
)
async def delete_any_api_key(
    services: Services,
    author: ChangeAuthor,
    key_id: KeyId,
    *,
    force: Annotated[
        bool,
        QueryParameter(
            name="force", description="Also the last OWNER key of a tenant without an owner."
        ),
    ] = False,
) -> None:
    """Revoke a key of any tenant, also of a suspended one.

    After this answer every process rejects requests with it. Revoking a revoked key succeeds.
    """
    await services.operator_keys.revoke(author, key_id, force=force)


@get(
    PATH + "/parked-events",
    guards=[_operator],
    summary="List events without a tenant (operator)",
)
async def list_parked_events(
    services: Services, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[UnplacedEvent]:
    """List the events that belong to no tenant, the last received first, each with the command
    that places it.

    These are the parked events, and those of the last 30 days that name neither a tenant nor a
    linked customer, or are invalid.
    """
    return await services.unplaced_events.list_page(limit, cursor)
