"""``tenantry admin explain-tenant`` and ``show-event-body``: a tenant's billing state, and what the
provider sent.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import click
import msgspec
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from tenantry.cli.operator import Operator
from tenantry.cli.operator_command import OperatorCommand
from tenantry.cli.operator_options import org_argument
from tenantry.domain.billing.explanation import (
    BillingEventView,
    BillingExplanation,
    BillingFields,
    SubscriptionView,
)
from tenantry.domain.grants import Grant
from tenantry_cli import output
from tenantry_cli.options import json_option
from tenantry_cli.output import (
    aligned,
    change,
    changes,
    counted,
    limits_in_force,
    own_command,
    print_json,
    printable,
    shown,
    subscription_words,
)

JSON_NAMES: Final = dict(
    zip(BillingFields.__struct_fields__, BillingFields.__struct_encode_fields__, strict=True)
)


@click.command("explain-tenant", cls=OperatorCommand)
@org_argument
@json_option("Entries and state as one JSON document.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="At most this many, the newest.",
)
def explain_tenant(operator: Operator, *, org_id: str, as_json: bool, limit: int) -> None:
    """Show why an organization has its plan and status: each event, oldest first, what it changed
    and why.

    \b
      tenantry admin explain-tenant acme
    """
    explanation = operator.explain_tenant(org_id, limit)
    (print_json if as_json else show)(explanation)


def show(explanation: BillingExplanation, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = 100_000
    for line in _explanation_lines(explanation):
        console.print(line)


def _indented(text: str, style: str = "", left: int = 2) -> Padding:
    return Padding(Text(text.rstrip(), style), (0, 0, 0, left), expand=False)


def _explanation_lines(explanation: BillingExplanation) -> Iterator[RenderableType]:
    tenant = explanation.tenant
    yield Text.assemble((tenant.id, "bold"), "  ", printable(tenant.name))
    yield Text(", ".join(_facts(explanation)))
    yield ""
    if explanation.earlier:
        yield Text(f"({explanation.earlier:,} earlier left out; --limit shows more)", "dim")
        yield ""
    if not explanation.entries:
        yield from _advice_without_events(explanation)
        yield ""
    for entry in explanation.entries:
        yield from _entry_lines(entry)
        yield ""
    yield from _state_lines(explanation)


def _facts(explanation: BillingExplanation) -> Iterator[str]:
    tenant = explanation.tenant
    yield f"plan {shown(tenant.plan)}"
    yield subscription_words(tenant.subscription_status)
    yield from (f"grant {shown(grant.name)}" for grant in explanation.grants)
    yield from (f"customer {shown(customer)}" for customer in explanation.customers)
    flags = {
        "no customer": not explanation.customers,
        "suspended": explanation.suspended,
        "ended": explanation.ended,
    }
    yield from (name for name, is_set in flags.items() if is_set)


def _advice_without_events(explanation: BillingExplanation) -> Iterator[RenderableType]:
    org_id = explanation.tenant.id
    yield Text("No billing events yet.", "bold")
    yield _indented(
        "If this tenant has paid, its events were lost, or name another tenant. Look at the provider:"
    )
    yield _indented(f"  tenantry reconcile --org {org_id}")
    if not explanation.customers:
        yield _indented(
            f"It finds a subscription whose metadata.orgId is {org_id}. Else link the customer that paid:"
        )
        yield _indented(f"  tenantry admin link CUSTOMER --org {org_id}")


def _entry_lines(entry: BillingEventView) -> Iterator[RenderableType]:
    outcome = (entry.outcome, output.CELL_STYLES.get(entry.outcome, ""))
    when = (shown(entry.created), "bold")
    yield Text.assemble(
        when,
        "  ",
        printable(entry.type),
        "  ",
        outcome,
    )
    yield _indented(printable(entry.reason))
    for field, values in changes(entry.before, entry.after):
        yield _indented(f"{JSON_NAMES[field]}: {values}", "cyan")
    if entry.anomalies:
        yield _indented(f"unexpected: {', '.join(entry.anomalies)}", "yellow")
    yield _indented(f"{printable(entry.id)}, arrived {_delay(entry)}", "dim")


def _state_lines(explanation: BillingExplanation) -> Iterator[RenderableType]:
    yield Text("The state now", "bold")
    values = map(shown, msgspec.structs.astuple(explanation.state))
    rows = zip(explanation.state.__struct_encode_fields__, values, strict=True)
    yield from map(_indented, aligned(rows))
    subscriptions = map(_subscription_lines, explanation.subscriptions)
    yield from _section("Subscriptions, the one that counts first", subscriptions)
    yield from _section("Grants", map(_grant_lines, explanation.grants))
    access = explanation.tenant.access
    yield ""
    yield Text.assemble(("Access", "bold"), f"  {limits_in_force(access)}")
    yield _indented(printable(access.reason))
    yield from map(_indented, _endings(explanation))
    yield ""
    yield from _fold_lines(explanation)


def _section(heading: str, items: Iterable[Iterable[RenderableType]]) -> Iterator[RenderableType]:
    """Yield the lines of items below a heading; nothing without items."""
    lines = list(chain.from_iterable(items))
    if lines:
        yield from ("", Text(heading, "bold"), *lines)


def _endings(explanation: BillingExplanation) -> Iterator[str]:
    """Say what ends by time, with its grant, and the reason for what counts then if that is
    another.
    """
    reason = explanation.tenant.access.reason
    for ending in explanation.endings:
        names = "".join(f"grant {name}: " for name in ending.grants)
        text = f"{shown(ending.at)}  {names}{ending.ends}."
        yield printable(text if ending.reason == reason else f"{text} {ending.reason}")
        reason = ending.reason


def _fold_lines(explanation: BillingExplanation) -> Iterator[RenderableType]:
    """Compare the state with the fold of the events."""
    folded = f"The fold of {_folded_events(explanation)}"
    if explanation.differences:
        yield Text(f"{folded} gives something else:", "bold red")
    else:
        yield Text(f"{folded} gives just that.", "green")
    for field in explanation.differences:
        yield _indented(f"{field.field}: {change(field.stored, field.folded)}")
    if explanation.parked:
        parked = counted(explanation.parked, "parked event")
        yield Text(f"{parked} could take their place.", "bold red")
    if explanation.differences or explanation.parked:
        yield Text(f"To repair it: {own_command()} admin rebuild-tenants {explanation.tenant.id}")


def _folded_events(explanation: BillingExplanation) -> str:
    """Count the events that decide the state, among all entries."""
    entries = explanation.earlier + len(explanation.entries)
    others = entries - explanation.events
    if not others:
        return counted(entries, "event")
    which = "other does" if others == 1 else "others do"
    return (
        f"{explanation.events:,} of {counted(entries, 'event')} (the {which} not concern the state)"
    )


def _subscription_lines(subscription: SubscriptionView) -> Iterator[RenderableType]:
    facts = ", ".join(_subscription_facts(subscription))
    yield _indented(f"{printable(subscription.id) or '(without id)'}  {facts}")
    yield _indented(printable(subscription.reason), "dim", 4)


def _grant_lines(grant: Grant) -> Iterator[RenderableType]:
    until = "without end" if grant.until is None else f"until {shown(grant.until)}"
    yield _indented(f"{printable(grant.name)}  {', '.join(grant.gives)}, {until}")
    yield _indented(printable(grant.reason), "dim", 4)


def _subscription_facts(subscription: SubscriptionView) -> Iterator[str]:
    is_ended = subscription.ended_at is not None
    yield f"plan {shown(subscription.plan)}"
    yield f"status {shown(subscription.status)}"
    if subscription.seats is not None:
        yield counted(subscription.seats, "seat")
    moments = {
        "past due since": subscription.past_due_since,
        "ended": subscription.ended_at,
        "ends": None if is_ended else subscription.cancel_at,
        "period ends": subscription.current_period_end,
    }
    yield from (f"{name} {shown(moment)}" for name, moment in moments.items() if moment)
    if subscription.cancel_at_period_end and not is_ended:
        yield "ends with the period"


def _delay(event: BillingEventView) -> str:
    """Format how long after its creation an event arrived."""
    seconds = int((event.received_at - event.created).total_seconds())
    if seconds == 0:
        return "at once"
    return f"{output.largest_unit(abs(seconds))} {'later' if seconds > 0 else 'too early'}"


@click.command("show-event-body", cls=OperatorCommand)
@click.argument("event_id", metavar="EVENT")
def show_event_body(operator: Operator, *, event_id: str) -> None:
    """Print what the provider sent for an event, byte for byte.

    RAW_BODIES says whose bodies are stored, RAW_BODY_DAYS how long. Exits with 5 if there is no
    such event, or no body of it.

    \b
      tenantry admin show-event-body evt_1SQk7xLm3Rk2pXw7 >event.json
    """
    click.echo(operator.event_body(event_id), nl=False)
