"""How a tenant is shown before and after, and how events are said to have fared."""

from collections.abc import Iterator
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.text import printable, shown
from tenantry.domain.tenants import Tenant
from tenantry_devkit.local.endpoint import Answer

_UNTOLD: Final = frozenset({"id", "name", "owner_id", "created_at", "updated_at"})
_BAD_SIGNATURE: Final = "Invalid signature"


class Change(msgspec.Struct, frozen=True):
    """A field of a tenant record that is another now."""

    field: str
    before: object
    after: object


def changes(before: Tenant | None, after: Tenant | None) -> list[Change]:
    """The fields of a record that events have changed; none where it cannot be seen."""
    if before is None or after is None:
        return []
    names = zip(Tenant.__struct_fields__, Tenant.__struct_encode_fields__, strict=True)
    pairs = ((shown_as, getattr(before, name), getattr(after, name)) for name, shown_as in names if name not in _UNTOLD)
    return [Change(name, old, new) for name, old, new in pairs if old != new]


def change_lines(changed: list[Change]) -> Iterator[Text]:
    """Each change in a line, before and after beneath each other."""
    width = max((len(change.field) for change in changed), default=0)
    olds = [shown(change.before) for change in changed]  # type: ignore[arg-type]
    middle = max(map(len, olds), default=0)
    for change, old in zip(changed, olds, strict=True):
        new = shown(change.after)  # type: ignore[arg-type]
        yield Text.assemble(f"{change.field:{width}}  ", (f"{old:{middle}}", "dim"), " -> ", (new, "bold cyan"))


def status_text(answer: Answer) -> Text:
    """An answer's status in its colour, and how long it took."""
    style = "green" if answer.is_good else "bold red"
    return Text.assemble((str(answer.status), style), f"  {answer.milliseconds:,} ms")


def refusal_lines(answer: Answer, sign_as: str) -> Iterator[Text]:
    """What a service said that did not take an event, and what may be done about it."""
    yield Text(printable(" ".join(answer.text.split())) or "(no text)", "red")
    if answer.text == _BAD_SIGNATURE:
        other = "--sign-as listener" if sign_as == "service" else "--sign-as service"
        yield Text(f"The service checks with another secret than this one. Perhaps {other}?", "dim")


def write(console: Console, text: Text, indent: int = 0, lead: Text | None = None) -> None:
    """Write a text, on a terminal within its width; ``lead`` stands before its first line, within the indent."""
    room = max(console.width - indent, 20)
    margin = Text(" " * indent)
    for number, part in enumerate(text.wrap(console, room) if console.is_terminal else [text]):
        part.rstrip()
        before = margin
        if number == 0 and lead is not None:
            before = lead + " " * (indent - lead.cell_len)
        console.print(before + part, soft_wrap=True)
