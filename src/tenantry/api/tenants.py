"""Routes of tenants: for their own people, and for the operator."""

from typing import Annotated, Final

import msgspec
from litestar import Response, delete, get, patch, post, put
from litestar.openapi import ResponseSpec
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET, UnsetType

from tenantry.accounts.tenant_export import TenantExport
from tenantry.api.guards import (
    Caller,
    CallerClaims,
    ChangeAuthor,
    IdempotencyClaim,
    TokenClaims,
    VerifiedAddress,
    needs,
    needs_operator,
    needs_own_token,
    needs_user,
    raises,
)
from tenantry.api.parameters import (
    DEFAULT_LIMIT,
    Cursor,
    CustomerId,
    Email,
    Limit,
    Reason,
    ReasonText,
    UserId,
    check_texts,
    path_parameter,
)
from tenantry.api.services import Services
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page
from tenantry.domain.errors import NotFoundError, ValidationError
from tenantry.domain.names import Name
from tenantry.domain.tenants import ManagedTenant, Tenant, TenantInput, TimeZone, is_tenant_id

PATH: Final = "/api/v1/tenants"

TenantId = Annotated[str, path_parameter("The organization's id.", "acme")]


class NewTenant(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A tenant to create."""

    name: Annotated[Name, doc(example="Acme")]
    owner_email: Annotated[Email | None, doc(example="ada@acme.example")] = None


class TenantChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The changes to a tenant. An absent field stays as it is."""

    name: Annotated[Name | UnsetType, doc(example="Acme Ltd")] = UNSET
    owner_email: Annotated[Email | None, doc(example="billing@acme.example")] = None
    time_zone: Annotated[
        TimeZone | UnsetType | None,
        doc("The time zone in which its pages show times; null means that of each reader."),
    ] = UNSET


class TenantEnd(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The confirmation to end a tenant."""

    name: Annotated[Name, doc("The tenant's name, to confirm.", "Acme")]
    reason: Annotated[
        ReasonText | None, doc("Why: the audit trail shows it.", "We have moved to Globex")
    ] = None


class BillingAddress(msgspec.Struct, frozen=True, rename="camel"):
    """The address that receives a tenant's billing mail."""

    email: Annotated[str, doc("The owner's address.", "ada@acme.example")]
    verified: Annotated[
        bool,
        doc("Whether it is verified; only then does it receive security notices.", example=True),
    ]


class OperatorTenant(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The desired state of a tenant; an absent field stays as it is, or gets its default in a new
    tenant.
    """

    name: Annotated[Name, doc(example="Acme")]
    owner_email: Annotated[Email, doc(example="ada@acme.example")]
    owner_id: Annotated[
        UserId | None, doc("The owner's id at the identity provider.", "user_ada")
    ] = None
    stripe_customer_id: Annotated[
        CustomerId | UnsetType | None,
        doc(
            "The payment provider's id of the customer to link; null removes the tenant's links.",
            "cus_Rk2pXw7Lm3",
        ),
    ] = UNSET
    suspended: Annotated[bool | None, doc("Whether the tenant's credentials are refused.")] = None
    reason: Annotated[
        ReasonText | None,
        doc(
            "Why, for the audit trail. That of a suspension is in the tenant's record and in each refusal.",
            "Invoice 2026-114 is unpaid",
        ),
    ] = None


@get(PATH, guards=[needs("tenants:read")], summary="List the caller's tenants")
async def list_tenants(
    services: Services,
    principal: Caller,
    token_claims: TokenClaims,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Tenant]:
    """List the tenants of the caller, newest first: the one of an API key, or all of a user."""
    return await services.tenants.list_page(
        principal,
        token_claims,
        limit,
        cursor,
    )


@get(PATH + "/{tenant_id:str}", guards=[needs("tenants:read")], summary="Get a tenant")
async def get_tenant(services: Services, principal: Caller, tenant_id: TenantId) -> Tenant:
    """Return the caller's tenant. Any other tenant is not found."""
    return await services.tenants.get(principal, tenant_id)


@post(
    PATH,
    guards=[needs_user(to_create=True)],
    summary="Create a tenant",
    opt=raises("tenant_exists", "tenant_limit_reached"),
)
async def create_tenant(
    services: Services,
    address: VerifiedAddress,
    claims: CallerClaims,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    data: JSONBody[NewTenant],
) -> Response[Tenant]:
    """Create a tenant with the user as its owner.

    If the token's organization claim names no existing tenant, it becomes the id. Without
    `ownerEmail` the token's verified address or the identity provider's counts.
    `TENANTS_PER_USER` limits how many tenants a user may create.
    """
    tenant = await services.tenants.create(
        claims,
        author,
        name=data.name,
        owner_email=data.owner_email,
        address=address,
        claim=claim,
    )
    return Response(tenant, headers={"Location": f"{PATH}/{tenant.id}"})


@patch(PATH + "/{tenant_id:str}", guards=[needs("tenants:write")], summary="Change a tenant")
async def update_tenant(
    services: Services,
    address: VerifiedAddress,
    principal: Caller,
    author: ChangeAuthor,
    tenant_id: TenantId,
    data: JSONBody[TenantChange],
) -> Tenant:
    """Change the name, the address for billing mail, or the time zone. A test-mode key may not.

    A new address is mailed a link to confirm it, unless it is the caller's verified one. The same
    unverified address again is mailed another.
    """
    if data == TenantChange():
        raise ValidationError(("name", "is missing: give at least one field to change"))
    return await services.tenants.update(
        principal,
        author,
        tenant_id,
        name=None if data.name is UNSET else data.name,
        owner_email=data.owner_email,
        time_zone=data.time_zone,
        address=address,
    )


@get(
    PATH + "/{tenant_id:str}/owner-address",
    guards=[needs("tenants:write")],
    summary="Get a tenant's billing address",
)
async def get_owner_address(
    services: Services, principal: Caller, tenant_id: TenantId
) -> BillingAddress:
    """Return the owner's address and whether it is verified. Who may change it may see it."""
    if tenant_id != principal.org_id:
        raise NotFoundError("tenant")
    found = await services.confirmations.of_tenant(principal)
    return BillingAddress(found.email, found.is_verified)


@post(
    PATH + "/{tenant_id:str}/end",
    guards=[needs_own_token("tenants:write")],
    status_code=204,
    summary="End a tenant",
    opt=raises("user_token_required", "scope_escalation", "subscription_exists"),
)
async def end_tenant(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    tenant_id: TenantId,
    data: JSONBody[TenantEnd],
) -> None:
    """End the caller's tenant: for owners, with their own token.

    Its members lose access and its keys end with this answer. The operator can export its data for
    30 days; then tenantry deletes it. A subscription that renews must be canceled first.
    """
    await services.tenants.end_own(
        principal,
        author.because(data.reason),
        tenant_id,
        name=data.name,
    )


@put(
    PATH + "/{tenant_id:str}",
    guards=[needs_operator()],
    summary="Create or set a tenant (operator)",
    responses={201: ResponseSpec(ManagedTenant, description="The tenant is new.")},
    opt=raises("customer_taken", "tenant_deleted", "tenant_exists"),
)
async def put_tenant(
    services: Services,
    author: ChangeAuthor,
    tenant_id: TenantId,
    data: JSONBody[OperatorTenant],
    *,
    only_new: Annotated[
        bool, QueryParameter(name="onlyNew", description="Change no tenant that exists: 409.")
    ] = False,
    plan: Annotated[
        str | None,
        QueryParameter(
            name="plan",
            max_length=64,
            description="For a new tenant: a plan by contract, without an end: the grant `plan`.",
        ),
    ] = None,
) -> Response[ManagedTenant]:
    """Create the tenant, or change the given fields of an existing one.

    Its id is 1 to 64 of `A-Za-z0-9_-`. `stripeCustomerId` links the provider's customer, unless
    another tenant has it; null removes the links of all the tenant's customers, and with them
    what their invoices did. `suspended` rejects the tenant's credentials until it is false
    again. The user `ownerId` becomes a member with the role owner, unless they were removed.
    """
    if not is_tenant_id(tenant_id):
        raise ValidationError(("tenant_id", "must be 1 to 64 of A-Za-z0-9_-"))
    fields = msgspec.structs.asdict(data)
    author = author.because(fields.pop("reason"))
    check_texts({"plan": plan})
    wanted = TenantInput(**fields, plan=plan)
    tenant, created = await services.tenants.put(author, tenant_id, wanted, only_new=only_new)
    return Response(
        tenant, status_code=201 if created else 200, headers={"Location": f"{PATH}/{tenant.id}"}
    )


@delete(
    PATH + "/{tenant_id:str}",
    guards=[needs_operator()],
    summary="End a tenant (operator)",
)
async def delete_tenant(
    services: Services, author: ChangeAuthor, tenant_id: TenantId, reason: Reason = None
) -> None:
    """Delete the tenant.

    Its keys end with this answer. Its data can be exported for 30 days; then tenantry deletes
    it.
    """
    await services.tenants.delete(author.because(reason), tenant_id)


@post(
    PATH + "/{tenant_id:str}/verify-owner-address",
    guards=[needs_operator()],
    status_code=200,
    summary="Verify a tenant's billing address (operator)",
)
async def verify_owner_address(
    services: Services, author: ChangeAuthor, tenant_id: TenantId
) -> BillingAddress:
    """Record that the owner's address is verified.

    Security notices go to the address from then on, without a confirmation mail.
    """
    found = await services.confirmations.verify(author, tenant_id)
    return BillingAddress(found.email, found.is_verified)


@get(
    PATH + "/{tenant_id:str}/export",
    guards=[needs_operator()],
    summary="Export a tenant (operator)",
)
async def export_tenant(
    services: Services, author: ChangeAuthor, tenant_id: TenantId
) -> TenantExport:
    """Return all data of a tenant except key digests and raw event bodies.

    A tenant can be exported for 30 days after its deletion. The audit trail records each
    export.
    """
    return await services.tenants.export(author, tenant_id)
