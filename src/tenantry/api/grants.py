"""Routes of the grants of a tenant, for the operator."""

from typing import Annotated

from litestar import delete, get, put
from litestar.params import JSONBody

from tenantry.api.guards import ChangeAuthor, needs_operator, raises
from tenantry.api.parameters import path_parameter
from tenantry.api.services import Services
from tenantry.api.tenants import PATH as TENANTS
from tenantry.api.tenants import TenantId
from tenantry.db.pagination import Page
from tenantry.domain.grants import Grant, GrantInput

GrantName = Annotated[
    str, path_parameter("The grant's name: 1 to 64 of `A-Za-z0-9_-`.", "contract-2027")
]
_operator = needs_operator()


class WantedGrant(GrantInput, frozen=True):
    """The terms of a grant. It gives a plan, features or limits."""


@put(
    TENANTS + "/{tenant_id:str}/grants/{name:str}",
    guards=[_operator],
    summary="Set a grant (operator)",
    opt=raises("grant_limit_reached", "tenant_deleted"),
)
async def put_grant(
    services: Services,
    author: ChangeAuthor,
    tenant_id: TenantId,
    name: GrantName,
    data: JSONBody[WantedGrant],
) -> Grant:
    """Give the tenant a plan, features or limits, or replace the terms of a grant.

    It counts like a subscription that is always paid, until it ends. The same terms again change
    nothing. A tenant may have 50 grants.
    """
    return await services.grants.put(author, tenant_id, name, data)


@delete(
    TENANTS + "/{tenant_id:str}/grants/{name:str}",
    guards=[_operator],
    status_code=200,
    summary="End a grant (operator)",
    opt=raises("tenant_deleted"),
)
async def delete_grant(
    services: Services, author: ChangeAuthor, tenant_id: TenantId, name: GrantName
) -> Grant:
    """End a grant now, and return it. Ending an ended grant succeeds."""
    return await services.grants.end(author, tenant_id, name)


@get(
    TENANTS + "/{tenant_id:str}/grants",
    guards=[_operator],
    summary="List the grants of a tenant (operator)",
)
async def list_grants(services: Services, tenant_id: TenantId) -> Page[Grant]:
    """List the grants that count now, by name: all of them on one page. The ledger has the ended
    ones.
    """
    return Page(await services.grants.list_all(tenant_id), None)
