"""Routes across tenants, for the operator: tenants, API keys, and events that belong to no
tenant.
"""

from typing import Annotated, Final

import msgspec
from litestar import delete, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody, QueryParameter

from tenantry.api.api_keys import KeyId
from tenantry.api.guards import ChangeAuthor, needs_operator, raises
from tenantry.api.parameters import DEFAULT_LIMIT, Cursor, Limit, Reason, ReasonText, check_texts
from tenantry.api.services import Services
from tenantry.api.tenants import TenantId
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.billing.unplaced_events import UnplacedEvent
from tenantry.domain.key_import import ImportedKeyCounts
from tenantry.domain.plans import AccessState
from tenantry.domain.tenant_search import TenantFilter, TenantMatch
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
    check_texts({"search": search, "plan": plan, "status": status})
    return TenantFilter(
        search or None,
        plan,
        status,
        access,
        suspended,
    )


_operator = needs_operator()


class SuspensionChange(msgspec.Struct, forbid_unknown_fields=True):
    """Why a tenant is suspended, or resumed."""

    reason: Annotated[
        ReasonText | None,
        doc(
            "For the audit trail. That of a suspension is in the tenant's record and in each refusal.",
            "Invoice 2026-114 is unpaid",
        ),
    ] = None


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


@get(PATH + "/find", guards=[_operator], summary="Find a tenant (operator)")
async def find_tenant(
    services: Services,
    text: Annotated[
        str,
        QueryParameter(
            name="text",
            min_length=1,
            max_length=200,
            description="A tenant's id, a customer's id, the owner's address, a member's id, user id, address or "
            "name, a key's id, or four characters of an end of its secret, such as `svc_live_AbCd...wxyz`. "
            "Never send a whole secret.",
            schema_extra={"example": "cus_Rk2pXw7Lm3"},
        ),
    ],
) -> Page[TenantMatch]:
    """Find the tenants that a text names, all on one page, and what each was found by.

    For parts of names, search in the list of tenants.
    """
    check_texts({"text": text})
    return Page(await services.directory.find(text), None)


@get(PATH + "/tenants/{tenant_id:str}", guards=[_operator], summary="Get any tenant (operator)")
async def get_any_tenant(services: Services, tenant_id: TenantId) -> ManagedTenant:
    """Return a tenant that has not ended."""
    return await services.tenants.show(tenant_id)


@post(
    PATH + "/tenants/{tenant_id:str}/suspend",
    guards=[_operator],
    status_code=200,
    summary="Suspend a tenant (operator)",
)
async def suspend_tenant(
    services: Services, author: ChangeAuthor, tenant_id: TenantId, data: JSONBody[SuspensionChange]
) -> ManagedTenant:
    """Reject the tenant's credentials from now on, with 403 `org_suspended`. Billing events still
    count.
    """
    by = author.because(data.reason)
    return await services.tenants.suspend(by, tenant_id, suspended=True)


@post(
    PATH + "/tenants/{tenant_id:str}/resume",
    guards=[_operator],
    status_code=200,
    summary="Resume a tenant (operator)",
)
async def resume_tenant(
    services: Services, author: ChangeAuthor, tenant_id: TenantId, data: JSONBody[SuspensionChange]
) -> ManagedTenant:
    """Accept the tenant's credentials again."""
    by = author.because(data.reason)
    return await services.tenants.suspend(by, tenant_id, suspended=False)


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


@get(
    PATH + "/imported-keys",
    guards=[_operator],
    summary="Count imported API keys (operator)",
)
async def count_imported_keys(services: Services) -> Page[ImportedKeyCounts]:
    """Count the imported keys of each tenant that has one, all on one page: those that were used,
    and those that were not yet.

    Once a key was used, it no longer needs the system that made it.
    """
    return Page(await services.operator_keys.count_imported(), None)


@get(
    PATH + "/imported-keys/{tenant_id:str}",
    guards=[_operator],
    summary="List imported API keys (operator)",
)
async def list_imported_keys(
    services: Services,
    tenant_id: TenantId,
    *,
    unused: Annotated[
        bool,
        QueryParameter(name="unused", description="Only active keys that were not used yet."),
    ] = False,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[ApiKey]:
    """List the imported keys of a tenant, newest first."""
    return await services.operator_keys.list_imported(tenant_id, limit, cursor, unused=unused)


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
    reason: Reason = None,
) -> None:
    """Revoke a key of any tenant, also of a suspended one.

    After this answer every process rejects requests with it. Revoking a revoked key succeeds.
    """
    await services.operator_keys.revoke(author.because(reason), key_id, force=force)


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
