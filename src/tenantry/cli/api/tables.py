"""Tables and records for people: they fit a terminal of 80 columns, and are whole where they go into a file."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import click

from tenantry.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_GAP: Final = 2
_LEAST: Final = 8
_ENDLESS: Final = 100_000
_STYLES: Final = {
    "active": "green",
    "applied": "green",
    "revoked": "red",
    "expired": "yellow",
    "removed": "red",
    "past_due": "bold red",
    "late": "yellow",
    "parked": "yellow",
    "invalid": "bold red",
    "no_change": "dim",
    "ignored": "dim",
    "never": "dim",
    "-": "dim",
}


class Column(NamedTuple, Generic[T]):
    """A column. What is ``loose`` is folded where there is little room; an id never is. ``wide`` ones need 120."""

    title: str
    value: Callable[[T], str]
    loose: bool = False
    wide: bool = False


def print_pages(pages: Iterable[Sequence[T]], columns: Sequence[Column[T]]) -> bool:
    """Print a table page by page, with one head; whether there was anything to print."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    console, room = Console(highlight=False), _room()
    shown = [column for column in columns if not column.wide or room >= _WIDE]
    widths = [len(column.title) for column in shown]
    printed = False
    for page in pages:
        rows = [[printable(column.value(item)) for column in shown] for item in page]
        if rows:
            widths = _widths(rows, widths)
            _print(console, room, shown, rows, widths, with_head=not printed)
            printed = True
    return printed


_WIDE: Final = 120


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values below each other; a long value goes on in its own column."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    console, room = Console(highlight=False), _room()
    pairs = [[name, printable(value)] for name, value in rows]
    columns = [Column[None]("", _nothing), Column[None]("", _nothing, loose=True)]
    _print(console, room, columns, pairs, _widths(pairs, [0, 0]), with_head=False)


def _room() -> int:
    """The width of the terminal; a file has no end, whatever is said about colours."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    return Console().width if sys.stdout.isatty() else _ENDLESS


def _nothing(_: None) -> str:
    return ""


def _widths(rows: Sequence[Sequence[str]], before: Sequence[int]) -> list[int]:
    from rich.cells import cell_len  # noqa: PLC0415  # slow to import

    return [max(least, *(cell_len(row[number]) for row in rows)) for number, least in enumerate(before)]


def _print(
    console: "Console",
    room: int,
    columns: Sequence[Column[T]],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    *,
    with_head: bool,
) -> None:
    from rich.table import Table  # noqa: PLC0415  # slow to import
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=with_head, header_style="bold")
    room_of_loose = _room_of_loose(room, columns, widths)
    for column, width in zip(columns, widths, strict=True):
        given = min(width, room_of_loose) if column.loose else width
        table.add_column(
            column.title, width=given, no_wrap=not column.loose, overflow="fold" if column.loose else "ignore"
        )
    for row in rows:
        table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    console.width = max(room, sum(widths)) + _GAP * len(columns)  # so that nothing but the loose is ever folded
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=True)


def _room_of_loose(room: int, columns: Sequence[Column[T]], widths: Sequence[int]) -> int:
    """The width that each loose column may have."""
    fixed = sum(width for column, width in zip(columns, widths, strict=True) if not column.loose)
    number = sum(column.loose for column in columns)
    left = room - fixed - _GAP * (len(columns) - 1)
    return max(_LEAST, left // number) if number else 0
