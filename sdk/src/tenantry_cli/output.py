"""What commands write: exit codes, values, times, tables and a progress bar."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import click
import msgspec

from tenantry_cli._text_formats import counted as counted  # noqa: PLC0414  # exported
from tenantry_cli._text_formats import largest_unit as largest_unit  # noqa: PLC0414  # exported
from tenantry_cli._text_formats import minute as minute  # noqa: PLC0414  # exported
from tenantry_cli._text_formats import printable as printable  # noqa: PLC0414  # exported

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
Value = str | int | bool | datetime | None

FAILED: Final = 1
USAGE: Final = 2
"""The request is malformed; a retry fails too."""
DIFFERENCES: Final = 3
"""A comparison found drift, or a dry run something to repair."""
NOT_AUTHENTICATED: Final = 4
"""The credential is missing, rejected, or lacks a permission."""
NOT_FOUND: Final = 5
OUT_OF_REACH: Final = 6
"""The service is unreachable or overloaded; a retry may succeed."""

_YEAR: Final = 366 * 86_400
_INVISIBLE: Final = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_NAME: Final = "tenantry"
_GAP: Final = 2
_LEAST_WIDTH: Final = 8
_WIDE: Final = 120
_CELLS: Final = {
    "green": ("active", "applied"),
    "red": ("revoked", "removed"),
    "bold red": ("past_due", "invalid"),
    "yellow": ("expired", "late", "parked"),
    "dim": ("no_change", "ignored", "never", "-"),
}
CELL_STYLES: Final = {cell: style for style, cells in _CELLS.items() for cell in cells}


class CommandError(click.ClickException):
    """A command cannot continue. Has a message for the user and the exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it of the instance

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(printable_lines(self.message), file, err=True)


def confirm(question: str, *, yes: bool = False) -> None:
    """Ask for confirmation, unless ``yes``. Raises `CommandError` on "no", and without a
    terminal.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{question}\nThere is no terminal to confirm on: pass --yes.", USAGE)
    if not click.confirm(printable_lines(question), err=True):
        raise CommandError("Nothing was done.")


def day(moment: datetime | None, missing: str = "-") -> str:
    """Format the day in UTC."""
    return missing if moment is None else f"{moment.astimezone(timezone.utc):%Y-%m-%d}"


def grouped(number: int | None, missing: str = "-") -> str:
    """Format a number: ``12,000``."""
    return missing if number is None else f"{number:,}"


def last_use(moment: datetime | None, now: datetime) -> str:
    """Say when something was last used: ``last used 3 h ago``, ``never used``."""
    return "never used" if moment is None else f"last used {ago(moment, now)}"


def ago(moment: datetime | None, now: datetime) -> str:
    """Format the time since a moment in its largest unit: ``never`` for None, a date after a
    year.
    """
    if moment is None:
        return "never"
    seconds = int((now - moment).total_seconds())
    if seconds <= 0:
        return "now"
    if seconds > _YEAR:
        return day(moment)
    return f"{largest_unit(seconds)} ago"


def shown(value: Value) -> str:
    """Format a value for people; None is a dash."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case datetime():
            return (
                value.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
            )
        case _:
            return printable(str(value))


def pairs(record: object, *fields: str, **named: str) -> Iterator[tuple[str, str]]:
    """Yield the names and formatted values of an object's fields that are set; ``named`` maps names
    to fields.
    """
    for name, attribute in ({field: field for field in fields} | named).items():
        if (value := getattr(record, attribute)) is not None:
            yield name.replace("_", " "), shown(value)


def change(before: Value, after: Value) -> str:
    """Format a value before and after a change."""
    return f"{shown(before)} -> {shown(after)}"


def changes(before: object, after: msgspec.Struct | None) -> Iterator[tuple[str, str]]:
    """Yield the names of fields that differ, and their values before and after; without one of the
    two records nothing.
    """
    if before is None or after is None:
        return
    for field in after.__struct_fields__:
        old = getattr(before, field)
        new = getattr(after, field)
        if old != new:
            yield field, change(old, new)


def aligned(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Format names and values with the values in one column."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name:{width}}  {value}" for name, value in rows]


class AnyAccess(Protocol):
    """A tenant's access, of the service or of the SDK."""

    @property
    def state(self) -> str: ...
    @property
    def plan(self) -> str: ...
    @property
    def until(self) -> datetime | None: ...
    @property
    def reason(self) -> str: ...


def access_words(access: AnyAccess) -> str:
    """Say what a tenant's subscriptions and grants give now, and until when that stays."""
    until = f", unchanged until {shown(access.until)}" if access.until else ""
    return f"{limits_in_force(access)}{until}: {printable(access.reason)}"


def limits_in_force(access: AnyAccess) -> str:
    """Say whose limits count. "None" would read as if a tenant on the free plan were locked out."""
    limits = f"limits of plan {printable(access.plan)}"
    return limits if access.state == "none" else f"{printable(access.state)}, {limits}"


def subscription_words(status: str) -> str:
    """Return the status of a tenant's subscription as people read it."""
    return "no subscription" if status == "none" else f"subscription {printable(status)}"


def printable_lines(text: str) -> str:
    """Replace control characters except line ends; tabs and other blanks become spaces."""
    return "\n".join(printable(re.sub(r"[^\S\n]", " ", line)) for line in text.split("\n"))


def json_text(encoded: bytes) -> str:
    """Decode JSON, with invisible and control characters escaped."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded.decode())


def print_json_line(value: object) -> None:
    """Print an object as one line of JSON."""
    click.echo(json_text(msgspec.json.encode(value)))


def print_json(value: object, enc_hook: Callable[[Any], object] | None = None) -> None:
    click.echo(
        json_text(msgspec.json.format(msgspec.json.encode(value, enc_hook=enc_hook), indent=2))
    )


def say(message: str) -> None:
    """Print a message for people on stderr."""
    click.echo(printable_lines(message), err=True)


def report(value: object, message: str, *, as_json: bool) -> None:
    """Print an object as JSON, or else a message on stderr."""
    if as_json:
        print_json(value)
    else:
        say(message)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout, also where a progress bar has replaced it."""
    click.echo("\n".join(map(printable, lines)), sys.stdout)


def print_styled(*parts: str | tuple[str, str]) -> None:
    """Print a line of texts, some with a style, which does not wrap."""
    from rich.console import Console  # noqa: PLC0415  # slow to import
    from rich.text import Text  # noqa: PLC0415

    Console(highlight=False, soft_wrap=True).print(Text.assemble(*parts))


def discard_stdout() -> None:
    """Discard what Python still writes at exit to a pipe that its reader has closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def own_command(prefix: str = sys.prefix) -> str:
    """Return what to type to run this command again: its name if the shell finds it, else what was
    typed.
    """
    if one_time := _one_time_command(Path(prefix).parts):
        return one_time
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m tenantry"
    found = shutil.which(_NAME) or ""
    if script.name != _NAME or os.path.abspath(script) == os.path.abspath(found):  # noqa: PTH100  # links stay
        return _NAME
    return shlex.quote(str(script))


def _one_time_command(prefix: Sequence[str]) -> str | None:
    """Return the command of uv or pipx that made an environment for one run: its programs are in no
    other shell.
    """
    package = "'tenantry[demo]'" if find_spec("tenantry_devkit") else "tenantry"
    if "archive-v0" in prefix:
        # pipx can bring an uv, which is on no path
        is_of_pipx = shutil.which("pipx") and not shutil.which("uvx")
        return f"pipx run {package}" if is_of_pipx else f"uvx {package}"
    if {"pipx", ".cache"} <= set(prefix):
        return f"pipx run {package}"
    return None


def in_cell(value: Value | list[str]) -> str:
    """Format a field for a table: a time as a day, texts with commas between them."""
    match value:
        case datetime():
            return day(value)
        case list():
            return ", ".join(value)
        case _:
            return shown(value)


class Column(NamedTuple):
    """A column of a table: what it is ``of``, a field (``access.state`` is one of a field) or a
    function of the object, in the format ``text``.

    A ``loose`` one wraps on a narrow terminal; a ``wide`` one needs 120 characters; an ``optional``
    one is left out where all its cells are empty.
    """

    title: str
    of: str | Callable[[Any], object]
    text: Callable[[Any], str] = in_cell
    loose: bool = False
    wide: bool = False
    optional: bool = False

    def cell(self, item: object) -> str:
        read = attrgetter(self.of) if isinstance(self.of, str) else self.of
        return printable(self.text(read(item)))


def columns(*fields: str, loose: str = "", **named: str) -> list[Column]:
    """Make columns of an object's fields; ``named`` maps titles to fields, ``loose`` is a title."""
    titles = {field: field for field in fields} | named
    return [
        Column(title.upper().replace("_", " "), field, loose=title == loose)
        for title, field in titles.items()
    ]


def print_table(items: Iterable[T], columns: Sequence[Column]) -> bool:
    """Print a table; return whether there was a row."""
    is_wide = _terminal_width() >= _WIDE
    listed = list(items)
    shown_columns = [
        column
        for column in columns
        if (is_wide or not column.wide) and not (column.optional and _is_empty(column, listed))
    ]
    rows = [[column.cell(item) for column in shown_columns] for item in listed]
    if rows:
        _print_rows(shown_columns, rows)
    return bool(rows)


def print_list(
    items: Iterable[T], columns: Sequence[Column], nothing: str, *, as_json: bool
) -> None:
    """Print objects as lines of JSON, or as a table; ``nothing`` is the message if there are
    none.
    """
    if as_json:
        for item in items:
            print_json_line(item)
    elif not print_table(items, columns):
        say(nothing)


def _is_empty(column: Column, items: Iterable[object]) -> bool:
    return not any(column.cell(item) for item in items)


def print_record(value: object, rows: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Print an object as JSON, or else ``rows`` of a name and a value, one pair a line; a long
    value wraps in its own column.
    """
    if as_json:
        print_json(value)
        return
    cells = [[name, printable(text)] for name, text in rows]
    _print_rows([Column("", ""), Column("", "", loose=True)], cells)


def _terminal_width() -> int:
    from rich.console import Console  # noqa: PLC0415  # slow to import

    return Console().width if sys.stdout.isatty() else 100_000


def _print_rows(columns: Sequence[Column], rows: list[list[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415  # slow to import
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(
        box=None,
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
        show_header=columns[0].title != "",
        header_style="bold",
    )
    for column in columns:
        table.add_column(column.title, no_wrap=not column.loose, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, CELL_STYLES.get(cell, "")) for cell in row))
    console = Console(highlight=False, width=max(_terminal_width(), _least_width(columns, rows)))
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=True)


def _least_width(columns: Sequence[Column], rows: list[list[str]]) -> int:
    """Return how wide the table must be, so that only loose columns wrap."""
    from rich.cells import cell_len  # noqa: PLC0415  # slow to import

    least = 0
    for column, *cells in zip(columns, *rows, strict=True):
        width = max(map(cell_len, (column.title, *cells)))
        least += _GAP + (min(width, _LEAST_WIDTH) if column.loose else width)
    return least


@contextmanager
def progress(
    what: str,
    total: int,
    *,
    is_share: bool = False,
    console: "Console | None" = None,
) -> Iterator[Callable[..., None]]:
    """Show a progress bar if stderr is a terminal; give what updates it: ``advance`` are finished
    items, ``description`` replaces what it says.

    With ``is_share`` the bar has the percentage instead of the numbers, for items that mean nothing
    to the user.
    """
    from rich import progress as bars  # noqa: PLC0415  # slow to import
    from rich.console import Console  # noqa: PLC0415

    console = console or Console(stderr=True)
    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn() if is_share else bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # results for a file or pipe must not go to stderr
    ) as bar:
        yield partial(bar.update, bar.add_task(what, total=total))
