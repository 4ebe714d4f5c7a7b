"""The ledger of one customer, for the operator: its events, and its replay and reconciliation."""

from collections.abc import Iterator, Sequence
from typing import Final

from litestar import Response, get, post

from tenantry.billing.ledger_queries_store import EventFilter
from tenantry.billing.tenant_runs import MOST_INVALID
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.event_payload import ShownPayload, shown_payload
from tenantry.dashboard.events import EventId
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.guards import OPERATOR_PAGES, ORG, PageGuard
from tenantry.dashboard.labels import Change, event_types_named, field_label, shown_value
from tenantry.dashboard.pager import requested_page
from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.explanation import FieldComparison
from tenantry.domain.billing.tenant_runs import RunKind, RunResult, TenantRun
from tenantry.domain.errors import NotFoundError, ProviderNotConfiguredError, ValidationError
from tenantry.domain.plans import Catalog

PATH: Final = f"{OPERATOR_PAGES}{ORG}/events"
_CHECK: Final = f"{PATH}/check"
_PAGE_SIZE: Final = 25
_PARTS_OF_STATE: Final = ("state", "tipState")

_reader = PageGuard("billing:read")
_writer = PageGuard("billing:write")


@get(PATH, guards=[_reader])
async def show_ledger(ctx: Context) -> Response[str]:
    search = ctx.query("search")
    wanted = EventFilter(
        outcome=ctx.choice("outcome", Outcome),
        search=search or None,
        named_types=event_types_named(search),
    )
    filters = {"search": search, "outcome": wanted.outcome}
    request = requested_page(ctx, _PAGE_SIZE)
    return ctx.render(
        "operator_ledger.html",
        page=await ctx.services.billing.numbered_page(ctx.principal, wanted, request),
        filters=filters,
        query=forms.query_string(filters),
    )


@get(PATH + "/{event_id:str}", guards=[_reader])
async def show_ledger_event(ctx: Context, event_id: EventId) -> Response[str]:
    billing = ctx.services.billing
    event = await billing.get_history_entry(ctx.principal, event_id)
    return ctx.render(
        "operator_ledger_event.html",
        event=event,
        subject=await billing.get_subject(ctx.principal, event_id),
        payload=await _payload(ctx, event.id),
    )


async def _payload(ctx: PageContext, event_id: str) -> ShownPayload | None:
    """Return the stored body of an event, which the caller has found in this tenant's ledger."""
    try:
        return shown_payload(await ctx.services.operator_ledger.get_body(event_id))
    except NotFoundError:
        return None


@get(_CHECK, guards=[_reader])
async def show_ledger_check(ctx: Context) -> Response[str]:
    return await _check_page(ctx)


@post(_CHECK, guards=[_writer])
async def check_ledger(ctx: Context) -> Response[str]:
    kind = RunKind.RECONCILE if ctx.form.text("kind") == RunKind.RECONCILE else RunKind.REPLAY
    try:
        is_new = await ctx.services.tenant_runs.check(ctx.author, ctx.principal.org_id, kind)
    except ProviderNotConfiguredError as error:
        return await _check_page(ctx, error)
    return _to_run(ctx, is_new=is_new)


@post(f"{PATH}/repair", guards=[_writer])
async def repair_ledger(ctx: Context) -> Response[str]:
    try:
        author = ctx.author.because(ctx.form.text("reason") or None)
    except ValidationError as error:
        return await _check_page(ctx, error)
    checked = ctx.form.text("run")
    is_new = await ctx.services.tenant_runs.repair(author, ctx.principal.org_id, checked)
    return _to_run(ctx, is_new=is_new)


def _to_run(ctx: PageContext, *, is_new: bool) -> Response[str]:
    path = f"{ctx.user.base}/events/check"
    return ctx.redirect(path) if is_new else ctx.redirect_with(FlashMessage.RUN_JOINED, path)


async def _check_page(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    runs = ctx.services.tenant_runs
    run = await runs.find(ctx.principal.org_id)
    result = run.result if run is not None else None
    fields = result.fields if result is not None else ()
    return ctx.render(
        "operator_ledger_check.html",
        error,
        run=run,
        found=list(_sentences(run)) if run is not None else [],
        differences=[_difference(field, ctx.services.catalog) for field in fields],
        asks_provider=runs.asks_provider,
        most_invalid=MOST_INVALID,
    )


def _difference(field: FieldComparison, catalog: Catalog) -> Change:
    """Return the stored value of a field, and that of the events or the provider."""
    *above, name = field.field.split(".")
    label = field_label(name)
    if of := ".".join(part for part in above if part not in _PARTS_OF_STATE):
        label += f" of {of}"
    if field.is_of_checkpoint:
        label += " before the latest events"
    stored, folded = (shown_value(name, one, catalog) for one in (field.stored, field.folded))
    return Change(label, stored, folded)


def _sentences(run: TenantRun) -> Iterator[str]:
    """Say what an ended run found or repaired."""
    result = run.result
    if result is None:
        return
    if run.failure is None:
        yield _compared(run, result)
    elif not result.changes_something:
        yield "Nothing was changed."
    if result.parked:
        took = "took" if run.repairs else "could take"
        yield f"{_counted(result.parked, 'parked event')} {took} their place."
    if result.event_count:
        yield _of_events(run, result)
    for names, words in _listed(run, result):
        if names:
            yield f"{words}: {', '.join(names)}."


def _listed(run: TenantRun, result: RunResult) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the names that a run found, each kind with what is said of them."""
    linked = "are linked now" if run.repairs else "are not linked"
    lost = "lost or got" if run.repairs else "would lose or get"
    yield result.linked, f"Customers of the provider that {linked}"
    yield result.unknown_prices, "Prices that are in no plan of the catalog"
    yield result.others, f"Other customers that {lost} a subscription by it"


def _compared(run: TenantRun, result: RunResult) -> str:
    """Say how the stored state compares."""
    source, has = "the provider", "the provider has"
    if run.kind is RunKind.REPLAY:
        source = f"its {_counted(result.folded, 'event')}"
        has = f"{source} {'gives' if result.folded == 1 else 'give'}"
    number = result.field_count
    if not number:
        return f"The stored state is what {has}."
    fields = _counted(number, "field")
    if run.repairs:
        return f"{fields} {'was' if number == 1 else 'were'} repaired from {source}."
    differ = "differs" if number == 1 else "differ"
    return f"{fields} of the stored state {differ} from what {has}."


def _of_events(run: TenantRun, result: RunResult) -> str:
    events = _counted(result.event_count, "event")
    if run.kind is RunKind.REPLAY:
        read = "took their place" if run.repairs else "could take their place"
        return f"{events} that could not be read before {read}."
    return f"{events} never arrived{' before, and took their place' if run.repairs else ''}."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
