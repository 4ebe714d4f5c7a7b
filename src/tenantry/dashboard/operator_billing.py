"""The operator's page of what one customer has and why, and the changes of its links and grants."""

from contextlib import suppress
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.params import FromPath, PathParameter

from tenantry.api.parameters import IDENTIFIER
from tenantry.dashboard import customer_link_form, forms, grant_form
from tenantry.dashboard.billing import is_ending
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import OPERATOR_PAGES, ORG, PageGuard
from tenantry.dashboard.operator_questions import Question, ask, author_with_reason
from tenantry.domain import errors
from tenantry.domain.grants import GrantInput, GrantTerms, given_words

PATH: Final = OPERATOR_PAGES + ORG + "/billing"
_CUSTOMERS: Final = PATH + "/customers"
_CUSTOMER: Final = _CUSTOMERS + "/{customer_id:str}"
_GRANTS: Final = PATH + "/grants"
_GRANT: Final = _GRANTS + "/{name:str}"
_PAGE: Final = ("State and grants", "/billing")
_FAULTS: Final = (InvalidFormError, errors.GrantLimitReachedError, errors.ValidationError)
_MOVE: Final = Question(
    title="Move {} to another organization?",
    effects=(
        "Its events count for the other organization, and no longer for this one.",
        "Subscriptions whose metadata names an organization stay with that one.",
    ),
    button="Move customer",
    busy="Moving",
    page=_PAGE,
    reason_help="Both organizations see it in their audit trail.",
    is_danger=True,
)
_UNLINK: Final = Question(
    title="Unlink {}?",
    effects=(
        "Its events no longer count for this organization, except those of subscriptions whose metadata names it.",
        "They wait for another link for 30 days.",
    ),
    button="Unlink customer",
    busy="Unlinking",
    page=_PAGE,
    is_danger=True,
)
_END: Final = Question(
    title="End the grant {}?",
    effects=(
        "What it gives no longer counts, from the next request on.",
        "The subscription and other grants stay.",
    ),
    button="End grant",
    busy="Ending",
    page=_PAGE,
    is_danger=True,
)

GrantName = FromPath[str]
LinkedCustomer = Annotated[str, PathParameter(max_length=255, pattern=IDENTIFIER)]
_operator = PageGuard()


@get(PATH, guards=[_operator])
async def show_state(ctx: Context) -> Response[str]:
    services = ctx.services
    billing = await services.overview.of_billing(ctx.principal)
    return ctx.render(
        "operator_billing.html",
        billing=billing,
        tenant=billing.tenant,
        ends=is_ending(billing.tenant),
        outline=await services.operator_ledger.outline(ctx.principal.org_id),
        grants=[(terms, given_words(terms, services.catalog)) for terms in billing.grants],
    )


@get(_CUSTOMERS + "/new", guards=[_operator])
async def show_link_customer(ctx: Context) -> Response[str]:
    return customer_link_form.show(ctx, _PAGE)


@post(_CUSTOMERS + "/new", guards=[_operator])
async def link_customer(ctx: Context) -> Response[str]:
    try:
        await customer_link_form.submit(ctx, ctx.principal.org_id)
    except customer_link_form.FAULTS as error:
        return customer_link_form.show(ctx, _PAGE, error)
    return ctx.redirect_with(FlashMessage.CUSTOMER_LINKED, _address(ctx))


@get(_CUSTOMER + "/move", guards=[_operator])
async def show_move_customer(ctx: Context, customer_id: LinkedCustomer) -> Response[str]:
    await _check_linked(ctx, customer_id)
    return _ask_to_move(ctx, customer_id)


@post(_CUSTOMER + "/move", guards=[_operator])
async def move_customer(ctx: Context, customer_id: LinkedCustomer) -> Response[str]:
    own_id = ctx.principal.org_id
    target = ctx.form.text("orgId")
    if await ctx.services.links.holder_of(customer_id) == target != own_id:
        return ctx.redirect_with(FlashMessage.CUSTOMER_MOVED, _address(ctx))  # sent twice
    await _check_linked(ctx, customer_id)
    try:
        if target == own_id:
            raise InvalidFormError({"orgId": "It belongs to this organization already."})
        with forms.at_fields(customer_link_form.NO_TENANT):
            await ctx.services.tenants.show(target)
            await ctx.services.links.move(
                author_with_reason(ctx), customer_id, target, taken_from=own_id
            )
    except _FAULTS as error:
        return _ask_to_move(ctx, customer_id, error)
    return ctx.redirect_with(FlashMessage.CUSTOMER_MOVED, _address(ctx))


def _ask_to_move(
    ctx: PageContext, customer_id: str, error: Exception | None = None
) -> Response[str]:
    return ask(ctx, _MOVE.about(customer_id), error, "operator_move_customer.html")


@get(_CUSTOMER + "/unlink", guards=[_operator])
async def show_unlink_customer(ctx: Context, customer_id: LinkedCustomer) -> Response[str]:
    await _check_linked(ctx, customer_id)
    return ask(ctx, _UNLINK.about(customer_id))


@post(_CUSTOMER + "/unlink", guards=[_operator])
async def unlink_customer(ctx: Context, customer_id: LinkedCustomer) -> Response[str]:
    try:
        author = author_with_reason(ctx)
        # another operator may have unlinked or moved it: then nothing is left to do
        with suppress(errors.NotFoundError):
            await ctx.services.links.unlink(author, customer_id, tenant_id=ctx.principal.org_id)
    except errors.ValidationError as error:
        return ask(ctx, _UNLINK.about(customer_id), error)
    return ctx.redirect_with(FlashMessage.CUSTOMER_UNLINKED, _address(ctx))


@get(_GRANTS + "/new", guards=[_operator])
async def show_new_grant(ctx: Context) -> Response[str]:
    return _grant_page(ctx, None)


@post(_GRANTS + "/new", guards=[_operator])
async def set_grant(ctx: Context) -> Response[str]:
    name = ctx.form.text("name")
    try:
        wanted, _ = grant_form.read(ctx, name, None)
        return await _put(ctx, name, wanted, expected=None)
    except _FAULTS as error:
        return _grant_page(ctx, None, error)


@get(_GRANT + "/edit", guards=[_operator])
async def show_grant(ctx: Context, name: GrantName) -> Response[str]:
    return _grant_page(ctx, await _grant(ctx, name))


@post(_GRANT + "/edit", guards=[_operator])
async def change_grant(ctx: Context, name: GrantName) -> Response[str]:
    grant = await _grant(ctx, name)
    try:
        wanted, terms = grant_form.read(ctx, name, grant)
        current = {"terms": grant_form.words_of(grant)}
        submitted = {"terms": grant_form.words_of(terms)}
        edits = forms.find_edits(ctx.form, submitted, current, as_a_whole=True)
        if edits.conflicts:
            raise InvalidFormError({"plan": edits.conflicts["terms"]})
        return await _put(ctx, name, wanted, expected=grant)
    except _FAULTS as error:
        return _grant_page(ctx, grant, error)


@get(_GRANT + "/end", guards=[_operator])
async def show_end_grant(ctx: Context, name: GrantName) -> Response[str]:
    await _grant(ctx, name)
    return ask(ctx, _END.about(name))


@post(_GRANT + "/end", guards=[_operator])
async def end_grant(ctx: Context, name: GrantName) -> Response[str]:
    try:
        await ctx.services.grants.end(author_with_reason(ctx), ctx.principal.org_id, name)
    except errors.ValidationError as error:
        return ask(ctx, _END.about(name), error)
    return ctx.redirect_with(FlashMessage.GRANT_ENDED, _address(ctx))


async def _put(
    ctx: PageContext, name: str, wanted: GrantInput, *, expected: GrantTerms | None
) -> Response[str]:
    """Set a grant, whose reason is also that of the change. It replaces no other terms than the
    ``expected`` ones.
    """
    author = ctx.author.because(wanted.reason)
    await ctx.services.grants.put(author, ctx.principal.org_id, name, wanted, expected=expected)
    return ctx.redirect_with(FlashMessage.GRANT_SAVED, _address(ctx))


async def _grant(ctx: PageContext, name: str) -> GrantTerms:
    """Return a grant that counts. Raises `NotFoundError`."""
    billing = await ctx.services.overview.of_billing(ctx.principal)
    for terms in billing.grants:
        if terms.name == name:
            return terms
    raise errors.NotFoundError("grant")


def _grant_page(
    ctx: PageContext, terms: GrantTerms | None, error: Exception | None = None
) -> Response[str]:
    """Render the form of a grant; None for a new one."""
    catalog = ctx.services.catalog
    values = grant_form.values_of(terms, catalog)
    features = grant_form.features_of(terms, catalog)
    if error is not None:
        values = grant_form.submitted_values(ctx.form, values)
    return ctx.render(
        "operator_grant.html",
        error,
        name=terms.name if terms else None,
        values=values,
        is_unfolded=any(values[name] for name in grant_form.further_fields(features)),
        plans=grant_form.plan_choices(terms, catalog),
        features=features,
        known=catalog.features,
        limits=grant_form.limit_fields(),
        digests=forms.field_digests({"terms": grant_form.words_of(terms)}) if terms else {},
    )


async def _check_linked(ctx: PageContext, customer_id: str) -> None:
    """Raise `NotFoundError` unless the customer is linked to the tenant of the address."""
    if await ctx.services.links.holder_of(customer_id) != ctx.principal.org_id:
        raise errors.NotFoundError("linked customer")


def _address(ctx: PageContext) -> str:
    return f"{ctx.user.base}/billing"
