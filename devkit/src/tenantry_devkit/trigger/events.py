"""Sending events of one type, one after the other."""

from typing import Any, Final

import click
import httpx2
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.output import FAILED, counted, json_text, own_command, printable
from tenantry.domain.tenants import Tenant
from tenantry_devkit.local.endpoint import Answer
from tenantry_devkit.local.samples import OverrideError, Subject, override, sample_event
from tenantry_devkit.local.service import Entry, ServiceAwayError, Sight
from tenantry_devkit.trigger.session import (
    Change,
    Tools,
    change_lines,
    changes,
    first_second,
    now,
    refusal_lines,
    status_text,
    write,
)

_MOST_SHOWN: Final = 10
"""How many events are shown one by one."""

Json = dict[str, Any]


class _Sent(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    type: str
    created: int
    status: int
    milliseconds: int
    answer: str
    outcome: str | None
    reason: str | None


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """The document of a run; what cannot be seen is null."""

    tenant_id: str
    events: list[_Sent]
    before: Tenant | None
    after: Tenant | None
    changed: list[Change]


async def run(tools: Tools) -> int:
    """Send the events and show the tenant before and after; returns the exit code."""
    options = tools.options
    tenant_id = await tools.tenant_id()
    before = Sight() if options.dry_run else await tools.reader.look(tenant_id)
    subject = tools.subject(tenant_id, before)
    created = first_second(before, now() - (options.times or 1) + 1)
    console, sent = Console(highlight=False), list[tuple[Json, Answer]]()
    for number in range(options.times or 1):
        event = await _event(tools, subject, created + number)
        if options.dry_run:
            click.echo(msgspec.json.format(json_text(msgspec.json.encode(event)), indent=2))
            continue
        try:
            sent.append((event, await tools.endpoint.post(msgspec.json.encode(event))))
        except httpx2.HTTPError as error:
            raise ServiceAwayError(f"{tools.endpoint.url} does not answer ({type(error).__name__}).") from None
    if options.dry_run:
        return 0
    after = await tools.reader.look(tenant_id)
    seen = sent[:_MOST_SHOWN] if after.tenant else []
    entries = {event["id"]: await tools.reader.entry(tenant_id, event["id"]) for event, _ in seen}
    changed = changes(before.tenant, after.tenant)
    if options.as_json:
        document = _Document(
            tenant_id, [_sent(*pair, entries) for pair in sent], before.tenant, after.tenant, changed
        )  # fmt: skip
        click.echo(msgspec.json.format(json_text(msgspec.json.encode(document)), indent=2))
    else:
        for event, answer in sent[:_MOST_SHOWN]:
            _show(console, tools, event, answer, entries.get(event["id"]), subject if after.tenant else None)
        if len(sent) > _MOST_SHOWN:
            _show_rest(console, sent[_MOST_SHOWN:])
        _show_tenant(console, after.tenant, changed)
    if after.is_missing:
        click.echo(f"There is no tenant {tenant_id}. The service keeps events for it until there is.", err=True)
    elif after.tenant is None:
        click.echo(f"The tenant cannot be shown: {after.trouble}.", err=True)
    return 0 if all(answer.is_good for _, answer in sent) else FAILED


async def _event(tools: Tools, subject: Subject, created: int) -> Json:
    options = tools.options
    assert options.what is not None  # noqa: S101  # seen to before
    event = await sample_event(
        options.what, subject, created=created, shape=options.shape, status=options.status or "active"
    )
    try:
        override(event, options.overrides)
    except OverrideError as error:
        raise click.BadParameter(str(error), param_hint="--override") from None
    return event


def _sent(event: Json, answer: Answer, entries: dict[str, Entry | None]) -> _Sent:
    entry = entries.get(event["id"])
    return _Sent(
        id=event["id"],
        type=event["type"],
        created=event["created"],
        status=answer.status,
        milliseconds=answer.milliseconds,
        answer=answer.text,
        outcome=entry.outcome if entry else None,
        reason=entry.reason if entry else None,
    )


def _show(
    console: Console, tools: Tools, event: Json, answer: Answer, entry: Entry | None, subject: Subject | None
) -> None:
    """An event in two lines; ``subject`` is given where the tenant's ledger was looked at."""
    head = Text.assemble((str(event["type"]), "bold"), "  ", status_text(answer), "  ", (str(event["id"]), "dim"))
    write(console, head)
    if not answer.is_good:
        for line in refusal_lines(answer, tools.options.sign_as):
            write(console, line, 2)
    elif entry:
        write(console, Text(f"{entry.outcome}: {printable(entry.reason)}"), 2)
    elif subject:
        waits = f"It waits, for customer {subject.customer} is not linked to {subject.tenant} yet. This links it:"
        write(console, Text(waits, "yellow"), 2)
        write(console, Text(f"{own_command()} trigger checkout.session.completed --tenant {subject.tenant}"), 2)


def _show_rest(console: Console, sent: list[tuple[Json, Answer]]) -> None:
    good = sum(answer.is_good for _, answer in sent)
    trouble = f", {len(sent) - good:,} refused" if good < len(sent) else ""
    write(console, Text(f"and {counted(len(sent), 'event')} more: {good:,} taken{trouble}"))


def _show_tenant(console: Console, tenant: Tenant | None, changed: list[Change]) -> None:
    if tenant is None:
        return
    console.print()
    write(console, Text.assemble((tenant.id, "bold"), "  ", printable(tenant.name)))
    for line in change_lines(changed):
        write(console, line, 2)
    if not changed:
        write(console, Text(f"nothing changed: plan {tenant.plan}, status {tenant.subscription_status}", "dim"), 2)
