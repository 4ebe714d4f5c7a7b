"""The general settings of an organization, its creation and its end."""

from collections.abc import Mapping
from typing import Final

import msgspec
from litestar import Response, get, post

from tenantry.api.parameters import Email
from tenantry.api.tenants import NewTenant
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import OPERATOR_PAGES, ORG, PageGuard
from tenantry.domain.errors import (
    SubscriptionExistsError,
    TenantExistsError,
    TenantLimitReachedError,
    ValidationError,
)
from tenantry.domain.names import Name
from tenantry.domain.owner_mails import same_address
from tenantry.domain.tenants import Tenant

NEW: Final = "/account/new-organization"
PATH: Final = ORG + "/settings/general"
_MESSAGES: Final = {
    "name": "Use at most 200 characters.",
    "ownerEmail": "Enter one email address, such as billing@example.com.",
}
_CLAIMED: Final = (
    "Your identity provider decides to which organization you belong. Create another one there."
)
_FAULTS: Final = (InvalidFormError, ValidationError)


class _Details(msgspec.Struct, rename="camel"):
    """The form of the name and the time zone, which may be empty."""

    name: Name
    time_zone: str


class _BillingAddress(msgspec.Struct, rename="camel"):
    """The form of the address for billing mail."""

    owner_email: Email


_writer = PageGuard("tenants:write")
_owner = PageGuard("tenants:write", owner_only="delete the organization")


@get(PATH, guards=[PageGuard("tenants:read")])
async def show_general(ctx: Context) -> Response[str]:
    return await _general_page(ctx)


@post(PATH, guards=[_writer])
async def change_organization(ctx: Context) -> Response[str]:
    tenant = await ctx.tenant()
    submitted = {"name": ctx.form.text("name"), "timeZone": ctx.form.text("timeZone")}
    edits = forms.find_edits(ctx.form, submitted, _current_values(tenant))
    try:
        valid = forms.validate(_Details, edits.values, _MESSAGES, edits.conflicts)
        await ctx.services.tenants.update(
            ctx.principal,
            ctx.author,
            tenant.id,
            name=valid.name if "name" in edits.changed else None,
            time_zone=edits.value("timeZone", valid.time_zone or None),
        )
    except _FAULTS as error:
        return await _general_page(ctx, error, edits.values)
    return ctx.redirect_with(FlashMessage.ORGANIZATION_SAVED, _address(ctx))


@post(PATH + "/billing-address", guards=[_writer])
async def change_billing_address(ctx: Context) -> Response[str]:
    typed = ctx.form.text("ownerEmail")
    try:
        valid = forms.validate(_BillingAddress, {"ownerEmail": typed}, _MESSAGES)
        await ctx.services.tenants.update(
            ctx.principal,
            ctx.author,
            ctx.principal.org_id,
            owner_email=valid.owner_email,
            address=ctx.address,
        )
    except _FAULTS as error:
        return await _general_page(ctx, error)
    address = await ctx.services.confirmations.of_tenant(ctx.principal)
    message = (
        FlashMessage.ADDRESS_SAVED if address.is_verified else FlashMessage.ADDRESS_UNCONFIRMED
    )
    return ctx.redirect_with(message, _address(ctx))


@post(PATH + "/key-mails", guards=[_writer])
async def change_key_mails(ctx: Context) -> Response[str]:
    await ctx.services.tenants.update(
        ctx.principal,
        ctx.author,
        ctx.principal.org_id,
        leaves_key_mails=ctx.form.text("keyMails") != "on",
    )
    return ctx.redirect_with(FlashMessage.ORGANIZATION_SAVED, _address(ctx))


@get(PATH + "/delete", guards=[_owner])
async def show_delete_organization(ctx: Context) -> Response[str]:
    return await _delete_page(ctx)


@post(PATH + "/delete", guards=[_owner])
async def delete_organization(ctx: Context) -> Response[str]:
    tenant = await ctx.tenant()
    if faults := forms.confirmation_errors(ctx.form, "name", tenant):
        return await _delete_page(ctx, InvalidFormError(faults))
    try:
        await ctx.services.tenants.end_own(
            ctx.principal,
            ctx.author,
            tenant.id,
            name=tenant.name,
        )
    except (ValidationError, SubscriptionExistsError) as error:
        return await _delete_page(ctx, error)
    after = OPERATOR_PAGES if ctx.user.acts_as_operator else "/account"
    return ctx.redirect_with(FlashMessage.ORGANIZATION_DELETED, after)


@get(NEW, guards=[PageGuard()])
async def show_new_organization(ctx: Context) -> Response[str]:
    return _new_page(ctx)


@post(NEW, guards=[PageGuard()])
@waits_for_duplicate
async def create_organization(ctx: Context) -> Response[str]:
    values = {"name": ctx.form.text("name"), "ownerEmail": ctx.form.text("ownerEmail")}
    try:
        valid = forms.validate(NewTenant, values, _MESSAGES)
        created = await ctx.services.tenants.create(
            ctx.user.claims,
            ctx.author,
            name=valid.name,
            owner_email=_chosen_address(ctx, values["ownerEmail"]),
            address=ctx.address,
            claim=ctx.claim(),
        )
    except TenantExistsError:
        return _new_page(ctx, TenantExistsError(_CLAIMED))
    except (*_FAULTS, TenantLimitReachedError) as error:
        return _new_page(ctx, error)
    return ctx.redirect_with(FlashMessage.ORGANIZATION_CREATED, f"/orgs/{created.id}")


def _chosen_address(ctx: PageContext, typed: str) -> str | None:
    """Return the address, or None for the user's own, which then follows the identity provider."""
    own = ctx.user.claims.email
    return None if own is not None and same_address(own, typed) else typed


def _new_page(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    values = ctx.submitted.over({"name": "", "ownerEmail": ctx.user.claims.email or ""})
    return ctx.render("organization_new.html", error, values=values)


async def _general_page(
    ctx: PageContext,
    error: Exception | None = None,
    values: Mapping[str, str] | None = None,
) -> Response[str]:
    """Render the settings; ``values`` are those of a rejected form for the name and the time
    zone.
    """
    services = ctx.services
    principal = ctx.principal
    tenant = await ctx.tenant()
    current = _current_values(tenant)
    address = await services.confirmations.of_tenant(principal)
    membership = await services.members.of_user(principal, ctx.user.session.user)
    key_mails: bool | None = None
    if services.reminds_of_keys:
        key_mails = not await services.tenants.leaves_key_mails(principal)
    return ctx.render(
        "general.html",
        error,
        tenant=tenant,
        values=values or current,
        digests=forms.field_digests(current),
        email=ctx.submitted.over({"ownerEmail": address.email})["ownerEmail"],
        owner_address=address,
        membership=membership,
        key_mails=key_mails,
    )


async def _delete_page(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    tenant = await ctx.tenant()
    return ctx.render("organization_delete.html", error, tenant=tenant)


def _current_values(tenant: Tenant) -> dict[str, str]:
    """Return a tenant's fields as an unchanged form submits them."""
    return {"name": tenant.name.strip(), "timeZone": tenant.time_zone or ""}


def _address(ctx: PageContext) -> str:
    return f"{ctx.user.base}/settings/general"
