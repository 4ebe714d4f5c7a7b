"""Sending a history badly, and saying whether the tenant came to the state that it should have."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.billing.reads import BillingFields
from tenantry.cli.output import FAILED, Value, counted, json_text, own_command, printable, progress, shown
from tenantry.common.clock import from_epoch
from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry_devkit.local.chaos import SENDERS, Answers, Mischief, Part, Sending, Verdict, expected, judge, plan, send
from tenantry_devkit.local.relay import Pace
from tenantry_devkit.local.samples import API_VERSIONS, Subject, sample_event
from tenantry_devkit.local.service import Sight
from tenantry_devkit.local.stories import FEWEST, long_life, play
from tenantry_devkit.simulator import render_event
from tenantry_devkit.trigger import STORY
from tenantry_devkit.trigger.session import Tools, first_second, now, tenant_for, write
from tenantry_devkit.trigger.story import chosen, stage_for

_EVENTS: Final = 100
_DAY: Final = 86_400
_SHOWN_AS: Final = dict(zip(BillingFields.__struct_fields__, BillingFields.__struct_encode_fields__, strict=True))
_PERIOD_END: Final = "current_period_end"
_WORDS: Final = {
    Part.EVENT: "events",
    Part.DUPLICATE: "duplicates",
    Part.STALE: "signatures of two days ago",
    Part.FORGED: "forgeries",
}

Json = dict[str, Any]


class _Count(msgspec.Struct, frozen=True):
    part: Part
    status: int
    number: int


class _Field(msgspec.Struct, frozen=True):
    field: str
    expected: Value
    actual: Value


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """The document of a run; what could not be looked at is null."""

    tenant_id: str
    seed: int
    kinds: list[str]
    events: int
    requests: int
    answers: list[_Count]
    wrong: int
    fields: list[_Field]
    undecided: int | None
    ledger: dict[str, int] | None
    missing: int | None
    forged: int | None
    others: int | None
    converged: bool | None


async def run(tools: Tools) -> int:
    """Make a history, send it badly, and judge what came of it; returns the exit code."""
    options = tools.options
    seed = secrets.randbits(32) if options.seed is None else options.seed
    if options.what is None and options.times is not None and options.times < FEWEST:
        raise click.BadParameter(f"a long history has at least {FEWEST} events", param_hint="--times")
    kinds = [kind for kind in Mischief if kind in options.mischief]
    async with tenant_for(tools, "chaos") as (tenant_id, before):
        events = await _history(tools, tools.subject(tenant_id, before), before, seed)
        sendings = plan(events, kinds, seed)
        console = Console(highlight=False)
        if not options.as_json:
            _announce(console, tenant_id, events, kinds, seed)
        senders = SENDERS if Mischief.REORDER in kinds else 1
        with progress("sending", len(sendings)) as advance:
            answers = await send(sendings, tools.endpoint, senders=senders, pace=Pace(), advance=advance)
        after = await tools.reader.look(tenant_id)
        verdict = None
        if after.tenant is not None:
            wanted = expected(events, before.tenant, tools.policy)
            verdict = judge(events, wanted, after.tenant, await tools.reader.ledger(tenant_id))
        if options.as_json:
            document = _document(tenant_id, seed, events, sendings, answers, kinds, verdict)
            click.echo(msgspec.json.format(json_text(msgspec.json.encode(document)), indent=2))
        else:
            _show(console, tenant_id, len(events), sendings, answers, verdict)
    return 0 if not answers.wrong and (verdict is None or verdict.converged) else FAILED


async def _history(tools: Tools, subject: Subject, sight: Sight, seed: int) -> list[Json]:
    """The events, in the order in which they happened; the last of a long life is of about now."""
    options = tools.options
    if options.what is not None and options.what.startswith(STORY):
        story = chosen(tools)
        stage = stage_for(tools, subject, first_second(sight, now() - story.days * _DAY))
        async for _ in play(story, stage):
            pass
        happened = stage.simulator.events(*HANDLED_TYPES)
        return [render_event(event, API_VERSIONS[options.shape]) for event in happened]
    number = options.times or _EVENTS
    start = first_second(sight, now() - number)
    if options.what is None:
        amounts = {price: amount for price, amount in tools.prices.items() if amount} or tools.prices
        return await long_life(subject, amounts, events=number, start=start, seed=seed, shape=options.shape)
    return [
        await sample_event(
            options.what, subject, created=start + place, shape=options.shape, status=options.status or "active"
        )
        for place in range(number)
    ]


def _announce(console: Console, tenant_id: str, events: Sequence[Json], kinds: Sequence[Mischief], seed: int) -> None:
    head = Text.assemble(("chaos", "bold"), f"  {counted(len(events), 'event')} of tenant {tenant_id}, sent badly")
    write(console, head)
    write(console, Text(f"{', '.join(kinds)}; --seed {seed} does the same again", "dim"))
    console.print()


def _show(
    console: Console,
    tenant_id: str,
    events: int,
    sendings: Sequence[Sending],
    answers: Answers,
    verdict: Verdict | None,
) -> None:
    write(console, Text(f"{counted(len(sendings), 'request')}:"))
    for (part, status), number in _in_order(answers):
        is_right = (status // 100 == 2) is (part in (Part.EVENT, Part.DUPLICATE))  # noqa: PLR2004
        line = Text.assemble(
            f"{_WORDS[Part(part)]:27}{number:8,}  ", (str(status), "green" if is_right else "bold red")
        )
        write(console, line, 2)
    for example in answers.examples:
        write(console, Text(printable(example), "red"), 2)
    if verdict is None:
        console.print()
        write(console, Text("The tenant cannot be seen, so nobody can say whether it converged.", "yellow"))
        return
    _show_ledger(console, verdict, events)
    console.print()
    _show_state(console, verdict)
    console.print()
    if verdict.converged and not answers.wrong:
        told = f"{counted(events, 'event')}, each counted once, in the order in which they happened."
        if verdict.outcomes is None:
            told = "the state is the one expected. Its ledger cannot be seen: that needs the scope billing:read."
        write(console, Text(f"Converged: {told}", "bold green"))
    else:
        write(console, Text(_complaint(answers, verdict), "bold red"))
    write(console, Text(f"How it came about: {own_command()} tenants explain {tenant_id}", "dim"))


def _in_order(answers: Answers) -> list[tuple[tuple[str, int], int]]:
    """The counts of answers: the genuine first."""
    parts = list(Part)
    return sorted(answers.counts.items(), key=lambda count: (parts.index(Part(count[0][0])), count[0][1]))


def _show_ledger(console: Console, verdict: Verdict, events: int) -> None:
    if verdict.outcomes is None:
        return
    write(console, Text("the ledger:"))
    for outcome, number in verdict.outcomes.items():
        write(console, Text(f"{outcome:27}{number:8,}"), 2)
    if verdict.missing:
        write(console, Text(f"{'missing':27}{verdict.missing:8,}  of {events:,}", "bold red"), 2)
    if verdict.forged:
        write(console, Text(f"{'forged':27}{verdict.forged:8,}", "bold red"), 2)


def _show_state(console: Console, verdict: Verdict) -> None:
    rows = list(_fields(verdict))
    names = max(len(row.field) for row in rows)
    middle = max(len("in their order"), *(len(shown(row.expected)) for row in rows))
    write(console, Text(f"{'':{names}}  {'in their order':{middle}}  the service", "dim"), 2)
    for row in rows:
        style = "green" if row.expected == row.actual else "bold red"
        line = Text.assemble(
            f"{row.field:{names}}  {shown(row.expected):{middle}}  ", (shown(row.actual), style)
        )  # fmt: skip
        write(console, line, 2)


def _complaint(answers: Answers, verdict: Verdict) -> str:
    parts = []
    if verdict.expected != verdict.actual:
        parts.append("Not converged: the state is not what the events come to.")
        if verdict.others:
            parts.append(f"{counted(verdict.others, 'other entry').replace('entrys', 'entries')} came in meanwhile.")
        if verdict.undecided:
            parts.append(f"In {counted(verdict.undecided, 'second')} nothing proves the order: arrival decides.")
    if verdict.missing:
        parts.append(f"{counted(verdict.missing, 'event')} are not in the ledger.")
    if verdict.forged:
        parts.append("Forged events are in the ledger.")
    if answers.wrong:
        parts.append(f"{counted(answers.wrong, 'answer')} should have been another.")
    return " ".join(parts)


def _fields(verdict: Verdict) -> list[_Field]:
    def value(name: str, fact: Value) -> Value:
        return from_epoch(fact) if name == _PERIOD_END and isinstance(fact, int) else fact

    return [
        _Field(_SHOWN_AS[name], value(name, wanted), value(name, verdict.actual[name]))
        for name, wanted in verdict.expected.items()
    ]


def _document(
    tenant_id: str,
    seed: int,
    events: Sequence[Json],
    sendings: Sequence[Sending],
    answers: Answers,
    kinds: Sequence[Mischief],
    verdict: Verdict | None,
) -> _Document:
    return _Document(
        tenant_id=tenant_id,
        seed=seed,
        kinds=list(kinds),
        events=len(events),
        requests=len(sendings),
        answers=[_Count(Part(part), status, number) for (part, status), number in _in_order(answers)],
        wrong=answers.wrong,
        fields=_fields(verdict) if verdict else [],
        undecided=verdict.undecided if verdict else None,
        ledger=verdict.outcomes if verdict else None,
        missing=verdict.missing if verdict else None,
        forged=verdict.forged if verdict else None,
        others=verdict.others if verdict else None,
        converged=verdict.converged if verdict else None,
    )
