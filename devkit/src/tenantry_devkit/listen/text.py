"""Deliveries as text and as JSON, and what they came to."""

from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.text import counted, json_text, printable, shown
from tenantry.common.clock import from_epoch
from tenantry_devkit.local.relay import Attempt, Outcome, Tally

_STYLES: Final = {
    Outcome.DELIVERED: "green",
    Outcome.REFUSED: "bold red",
    Outcome.RETRYING: "yellow",
    Outcome.GIVEN_UP: "bold red",
}
_BESIDE: Final = 110
"""Columns from which on an event's id stands beside its type, instead of below."""
_TYPE_WIDTH: Final = 31
_LONGEST_ANSWER: Final = 300


class DeliveryLines:
    """Writes each attempt: on a terminal in two lines that fit it, elsewhere in one that is easy to search."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, attempt: Attempt) -> None:
        """Write an attempt down."""
        event = attempt.event
        status = "---" if attempt.status is None else str(attempt.status)
        taken = "" if attempt.milliseconds is None else f"{attempt.milliseconds:,} ms"
        head = Text.assemble(
            (f"{attempt.at.astimezone():%H:%M:%S}", "dim"), "  ", (status, _STYLES[attempt.outcome]), f"{taken:>10}  "
        )  # fmt: skip
        indent = head.cell_len
        event_type, about = printable(event.type), Text(_about(attempt), "dim")
        more = [_trouble(attempt)] if attempt.outcome is not Outcome.DELIVERED else []
        if not self._console.is_terminal:
            line = Text("  ").join([head + event_type, about, *more])
            self._console.print(line, soft_wrap=True)
            return
        if self._console.width >= _BESIDE:
            self._console.print(head + f"{event_type:{_TYPE_WIDTH}}  " + about, soft_wrap=True)
        else:
            self._console.print(head + event_type, soft_wrap=True)
            more.insert(0, about)
        for text in more:
            for part in text.wrap(self._console, max(self._console.width - indent, 20)):
                part.rstrip()
                self._console.print(Text(" " * indent) + part, soft_wrap=True)


def _about(attempt: Attempt) -> str:
    event = attempt.event
    return "  ".join(printable(part) for part in (event.id, event.tenant, event.customer) if part)


def _trouble(attempt: Attempt) -> Text:
    answer = printable(" ".join(attempt.answer.split()))[:_LONGEST_ANSWER] or "(no text)"
    match attempt.outcome:
        case Outcome.RETRYING:
            return Text(f"{answer}; trying again", _STYLES[attempt.outcome])
        case Outcome.GIVEN_UP:
            return Text(f"{answer}; given up after {counted(attempt.number, 'try').replace('trys', 'tries')}", "red")
        case _:
            return Text(answer, "red")


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    time: str
    id: str
    type: str
    created: str
    tenant_id: str | None
    customer: str | None
    outcome: Outcome
    attempt: int
    status: int | None
    milliseconds: int | None
    answer: str


def json_line(attempt: Attempt) -> str:
    """An attempt as one line of JSON."""
    event = attempt.event
    line = _Line(
        time=shown(attempt.at),
        id=event.id,
        type=event.type,
        created=shown(from_epoch(event.created)),
        tenant_id=event.tenant,
        customer=event.customer,
        outcome=attempt.outcome,
        attempt=attempt.number,
        status=attempt.status,
        milliseconds=attempt.milliseconds,
        answer=attempt.answer,
    )
    return json_text(msgspec.json.encode(line))


def summary(tally: Tally) -> str:
    """What a run came to, in one line."""
    parts = [f"{tally.delivered:,} delivered"]
    parts += [
        f"{number:,} {what}"
        for number, what in (
            (tally.refused, "refused"),
            (tally.given_up, "given up"),
            (tally.waiting, "not delivered yet"),
        )
        if number
    ]
    return f"{counted(tally.received, 'event')}: {', '.join(parts)}"
