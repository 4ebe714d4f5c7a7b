"""The general settings of an organization, its creation and its end."""

from collections.abc import Mapping
from typing import Final

import msgspec
from litestar import Response, get, post
from msgspec import UNSET

from tenantry.accounts.caller_address import CallerAddress
from tenantry.api.parameters import Email, Name
from tenantry.api.tenants import NewTenant
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import ORG, needs
from tenantry.domain.errors import (
    SubscriptionExistsError,
    TenantExistsError,
    TenantLimitReachedError,
    ValidationError,
)
from tenantry.domain.owner_mails import same_address

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


_writer = needs("tenants:write")
_owner = needs("tenants:write", owner_only="delete the organization")


@get(PATH, guards=[needs("tenants:read")])
async def show_general(ctx: Context) -> Response[str]:
    return await _general_page(ctx)


@post(PATH, guards=[_writer])
async def change_organization(ctx: Context) -> Response[str]:
    tenant = await ctx.services.tenants.get(ctx.principal, ctx.principal.org_id)
    current = _current_values(tenant.name, tenant.time_zone or "")
    submitted = {"name": ctx.form.text("name"), "timeZone": ctx.form.text("timeZone")}
    changed, conflicts = forms.find_edits(ctx.form, submitted, current)
    values = {
        field: submitted[field] if field in changed else current[field] for field in submitted
    }
    try:
        valid = forms.validate(_Details, values, _MESSAGES, conflicts)
        await ctx.services.tenants.update(
            ctx.principal,
            ctx.author,
            tenant.id,
            name=valid.name if "name" in changed else None,
            time_zone=(valid.time_zone or None) if "timeZone" in changed else UNSET,
        )
    except _FAULTS as error:
        return await _general_page(ctx, error, values=values)
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
            address=CallerAddress(ctx.user.claims),
        )
    except _FAULTS as error:
        return await _general_page(ctx, error, email=typed)
    address = await ctx.services.confirmations.of_tenant(ctx.principal)
    message = (
        FlashMessage.ADDRESS_SAVED if address.is_verified else FlashMessage.ADDRESS_UNCONFIRMED
    )
    return ctx.redirect_with(message, _address(ctx))


@get(PATH + "/delete", guards=[_owner])
async def show_delete_organization(ctx: Context) -> Response[str]:
    return await _delete_page(ctx)


@post(PATH + "/delete", guards=[_owner])
async def delete_organization(ctx: Context) -> Response[str]:
    tenants = ctx.services.tenants
    tenant = await tenants.get(ctx.principal, ctx.principal.org_id)
    typed = ctx.form.text("name")
    expected = forms.confirmation_text(tenant.name, tenant.id)
    faults = forms.confirmation_errors(typed, "name", expected)
    if faults:
        return await _delete_page(ctx, InvalidFormError(faults), typed)
    try:
        await tenants.end_own(
            ctx.principal,
            ctx.author,
            tenant.id,
            name=tenant.name,
        )
    except (ValidationError, SubscriptionExistsError) as error:
        return await _delete_page(ctx, error)
    return ctx.redirect_with(FlashMessage.ORGANIZATION_DELETED, "/account")


@get(NEW, guards=[needs()])
async def show_new_organization(ctx: Context) -> Response[str]:
    return _new_page(ctx, {"name": "", "ownerEmail": ctx.user.claims.email or ""})


@post(NEW, guards=[needs()])
@waits_for_duplicate
async def create_organization(ctx: Context) -> Response[str]:
    values = {"name": ctx.form.text("name"), "ownerEmail": ctx.form.text("ownerEmail")}
    address = CallerAddress(ctx.user.claims)
    try:
        valid = forms.validate(NewTenant, values, _MESSAGES)
        created = await ctx.services.tenants.create(
            ctx.user.claims,
            ctx.author,
            name=valid.name,
            owner_email=_chosen_address(ctx, values["ownerEmail"]),
            address=address,
            claim=await ctx.claim(),
        )
    except TenantExistsError:
        return _new_page(ctx, values, TenantExistsError(_CLAIMED))
    except (*_FAULTS, TenantLimitReachedError) as error:
        return _new_page(ctx, values, error)
    return ctx.redirect_with(FlashMessage.ORGANIZATION_CREATED, f"/orgs/{created.id}")


def _chosen_address(ctx: PageContext, typed: str) -> str | None:
    """Return the address, or None for the user's own, which then follows the identity provider."""
    own = ctx.user.claims.email
    return None if own is not None and same_address(own, typed) else typed


def _new_page(
    ctx: PageContext, values: Mapping[str, str], error: Exception | None = None
) -> Response[str]:
    return ctx.render("organization_new.html", error, values=values)


async def _general_page(
    ctx: PageContext,
    error: Exception | None = None,
    *,
    values: Mapping[str, str] | None = None,
    email: str | None = None,
) -> Response[str]:
    """Render the settings; ``values`` and ``email`` are what a rejected form contained."""
    services = ctx.services
    principal = ctx.principal
    tenant = await services.tenants.get(principal, principal.org_id)
    current = _current_values(tenant.name, tenant.time_zone or "")
    address = await services.confirmations.of_tenant(principal)
    membership = await services.members.of_user(principal, ctx.user.session.user)
    return ctx.render(
        "general.html",
        error,
        tenant=tenant,
        values=values or current,
        digests=forms.field_digests(current),
        email=address.email if email is None else email,
        owner_address=address,
        membership=membership,
    )


async def _delete_page(
    ctx: PageContext, error: Exception | None = None, typed: str = ""
) -> Response[str]:
    tenant = await ctx.services.tenants.get(ctx.principal, ctx.principal.org_id)
    return ctx.render(
        "organization_delete.html",
        error,
        tenant=tenant,
        typed=typed,
        expected=forms.confirmation_text(tenant.name, tenant.id),
    )


def _current_values(name: str, time_zone: str) -> dict[str, str]:
    """Return a tenant's fields as an unchanged form submits them."""
    return {"name": name.strip(), "timeZone": time_zone}


def _address(ctx: PageContext) -> str:
    return f"{ctx.user.base}/settings/general"
