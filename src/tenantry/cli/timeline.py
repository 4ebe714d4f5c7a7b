"""A tenant's history as text: for terminals of any width, and plain where it is piped."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.billing.explain import Explanation
from tenantry.billing.reads import BillingEventView, BillingFields
from tenantry.cli.text import counted, own_command, printable, shown
from tenantry.domain.billing.events import Outcome

_INDENT: Final = 2
_NARROWEST: Final = 20
_STYLES: Final = {
    Outcome.APPLIED: "green",
    Outcome.LATE: "yellow",
    Outcome.NO_CHANGE: "dim",
    Outcome.PARKED: "yellow",
    Outcome.IGNORED: "dim",
    Outcome.INVALID: "bold red",
}
_UNITS: Final = (("d", 24 * 3600), ("h", 3600), ("min", 60), ("s", 1))
Line = tuple[int, Text]
_BLANK: Final[Line] = (0, Text())


def show(explanation: Explanation, console: Console | None = None) -> None:
    """Print a tenant's history."""
    console = console or Console(highlight=False)
    for indent, text in _lines(explanation):
        room = max(console.width - indent, _NARROWEST)
        for part in text.wrap(console, room) if console.is_terminal else [text]:
            part.rstrip()
            console.print(Text(" " * indent) + part, soft_wrap=True)


def _lines(explanation: Explanation) -> Iterator[Line]:
    yield from _header(explanation)
    yield _BLANK
    if explanation.earlier:
        yield 0, Text(f"({explanation.earlier:,} earlier left out; --limit shows more)", "dim")
        yield _BLANK
    for entry in explanation.entries:
        yield from _entry(entry)
        yield _BLANK
    yield from _ending(explanation)


def _header(explanation: Explanation) -> Iterator[Line]:
    tenant = explanation.tenant
    yield 0, Text.assemble((tenant.id, "bold"), "  ", printable(tenant.name))
    facts = [f"plan {shown(tenant.plan)}", f"status {shown(tenant.subscription_status)}"]
    facts += [f"began with plan {shown(explanation.base_plan)}"]
    facts += [f"customer {shown(customer)}" for customer in explanation.customers] or ["no customer"]
    facts += ["suspended"] if explanation.suspended else []
    facts += ["ended"] if explanation.ended else []
    yield 0, Text(", ".join(facts))


def _entry(entry: BillingEventView) -> Iterator[Line]:
    yield (
        0,
        Text.assemble(
            (shown(entry.created), "bold"), "  ", printable(entry.type), "  ", (entry.outcome, _STYLES[entry.outcome])
        ),
    )
    yield _INDENT, Text(printable(entry.reason))
    for name, before, after in _changes(entry.before, entry.after):
        yield _INDENT, Text(f"{name}: {before} -> {after}", "cyan")
    if entry.anomalies:
        yield _INDENT, Text(f"unexpected: {', '.join(entry.anomalies)}", "yellow")
    yield _INDENT, Text(f"{printable(entry.id)}, arrived {_delay(entry.created, entry.received_at)}", "dim")


def _changes(before: BillingFields | None, after: BillingFields | None) -> Iterator[tuple[str, str, str]]:
    if before is None or after is None:
        return
    for name, shown_as in zip(before.__struct_fields__, before.__struct_encode_fields__, strict=True):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield shown_as, shown(old), shown(new)


def _ending(explanation: Explanation) -> Iterator[Line]:
    yield 0, Text("The state now", "bold")
    fields = dict(
        zip(explanation.state.__struct_encode_fields__, msgspec.structs.astuple(explanation.state), strict=True)
    )
    width = max(map(len, fields))
    for name, value in fields.items():
        yield _INDENT, Text(f"{name:{width}}  {shown(value)}")
    folded = f"The fold of {counted(explanation.events, 'event')}"
    if not explanation.differences:
        yield 0, Text(f"{folded} gives just that.", "green")
    else:
        yield 0, Text(f"{folded} gives something else:", "bold red")
        for field in explanation.differences:
            yield _INDENT, Text(f"{field.field}: {shown(field.stored)} -> {shown(field.folded)}")
    if explanation.parked:
        yield 0, Text(f"{counted(explanation.parked, 'parked event')} could take their place.", "bold red")
    if explanation.differences or explanation.parked:
        yield 0, Text(f"To set it right: {own_command()} tenants rebuild {explanation.tenant.id}")


def _delay(created: datetime, received: datetime) -> str:
    """How long after it happened an event arrived, in its two biggest units."""
    seconds = int((received - created).total_seconds())
    if seconds == 0:
        return "at once"
    parts, rest = [], abs(seconds)
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return f"{' '.join(parts[:2])} {'later' if seconds > 0 else 'too early'}"
