"""``tenantry logs tail``: the requests and events of a service, from its request log."""

import io
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Final, NamedTuple, cast

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.database import local_values, tenant_id
from tenantry.cli.options import json_option
from tenantry.cli.output import (
    CELL_STYLES,
    USAGE,
    CommandError,
    discard_stdout,
    json_text,
    printable,
    say,
)
from tenantry.cli.times import past
from tenantry.common.encoding import NOT_JSON
from tenantry.common.logs import REQUESTS, redact
from tenantry.settings import Settings, inherited

_STDIN: Final = "-"
_POLL_SECONDS: Final = 0.2
_BLOCK: Final = 64 * 1024
_LONGEST_LINE: Final = 64 * 1024
_LINES: Final = 10
_LINES_BEFORE_HINT: Final = 20
_STATUS: Final = re.compile("error|[1-5]xx|[0-9]{3}")
_KINDS: Final = ("requests", "events")
_FIRST_ERROR: Final = 400
_FIRST_SERVER_ERROR: Final = 500
_HINT: Final = (
    "No line is a request yet. The service logs requests to a file with LOG_REQUESTS_TO, and to stderr with "
    "LOG_REQUESTS=true and LOG_FORMAT=json."
)


class RequestLine(msgspec.Struct, omit_defaults=True):
    """A line of the request log. ``event`` and ``event_type`` are those of a provider event."""

    time: Annotated[datetime, msgspec.Meta(tz=True)]
    logger: str
    method: str
    route: str
    status: Annotated[int, msgspec.Meta(ge=100, le=599)]
    request_id: str = ""
    tenant: str | None = None
    principal: str | None = None
    event: str | None = None
    event_type: str | None = None
    outcome: str | None = None
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    trace_id: str | None = None


_decoder: Final = msgspec.json.Decoder(RequestLine)


def parse_line(line: bytes) -> RequestLine | None:
    """Parse a line of the log, also after a prefix as container tools add; None if it is not of a
    request.
    """
    if REQUESTS.encode() not in line:
        return None
    try:
        parsed = _decoder.decode(line[line.index(b"{") :])
        parsed.time.astimezone()  # fails at either end of the calendar
    except (ValueError, OverflowError, *NOT_JSON):
        return None
    if parsed.logger != REQUESTS:
        return None
    fields = msgspec.structs.asdict(parsed).items()
    # the service has masked secrets; the file may be another one
    return msgspec.structs.replace(
        parsed, **{name: redact(value) for name, value in fields if isinstance(value, str)}
    )


class LineBuffer:
    """Splits a stream of bytes into lines. A line that is too long is dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, block: bytes) -> list[bytes]:
        """Return the lines that this block completes."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            # of no request: the service writes shorter lines
            self._rest = self._rest[:_LONGEST_LINE]
        return lines


class LogFile:
    """A log file that is written to, rotated, truncated or created while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._lines = LineBuffer()

    def read(self) -> Iterator[bytes]:
        """Yield the lines that were added since the last call. Raises `CommandError` for an
        unreadable file.
        """
        try:
            yield from self._read_rest()
            if self._is_replaced():
                self.close()
                yield from self._read_rest()
        except OSError as error:
            message = f"{self._path} cannot be read: {error.strerror or error}"
            raise CommandError(message, USAGE) from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_rest(self) -> Iterator[bytes]:
        with suppress(FileNotFoundError):  # between two files, in a rotation
            file = self._file or self._open()
            while block := file.read(_BLOCK):
                yield from self._lines.add(block)

    def _open(self) -> IO[bytes]:
        self._file = self._path.open("rb")
        self._lines = LineBuffer()
        return self._file

    def _is_replaced(self) -> bool:
        if self._file is None:
            return False
        own = os.fstat(self._file.fileno())
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return not os.path.samestat(own, found) or found.st_size < self._file.tell()


def status_filter(text: str) -> str:
    """Convert ``404``, ``4xx`` or ``error``, or several with commas between, to a pattern. Raises
    `click.BadParameter`.
    """
    parts = [part.strip() for part in text.lower().split(",")]
    if not all(map(_STATUS.fullmatch, parts)):
        raise click.BadParameter(f"{text!r} is not a status such as 404, 5xx or error")
    return "|".join(parts).replace("error", "[45]xx").replace("x", ".")


@click.command("tail")
@click.argument(
    "file",
    metavar="[FILE|-]",
    required=False,
    type=click.Path(dir_okay=False, allow_dash=True),
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="ORG",
    type=tenant_id,
    help="Only of this tenant; repeatable.",
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    metavar="STATUS,...",
    type=status_filter,
    help="Only with this status: 404, 5xx, or error for all from 400 up; repeatable.",
)
@click.option(
    "--only",
    type=click.Choice(_KINDS),
    help="Only requests to the API, or only the provider's events.",
)
@click.option(
    "--since",
    type=past,
    metavar="TIME",
    help="Begin with those since then: 1h, 7d or an RFC 3339 time.",
)
@click.option(
    "--lines",
    type=click.IntRange(0),
    metavar="N",
    help="Begin with the last N that pass the filters. [10; with --since all]",
)
@click.option(
    "--follow/--no-follow", default=True, help="Wait for more, until Ctrl-C (default: yes)."
)
@json_option("One JSON document a line.")
def tail(
    *,
    file: str | None,
    tenants: tuple[str, ...],
    statuses: tuple[str, ...],
    only: str | None,
    since: datetime | None,
    lines: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the requests and provider events of a service as they come, from its request log.

    FILE is the log: by default that of LOG_REQUESTS_TO, or the demo's. - is standard input, for
    services that log to stderr (LOG_REQUESTS=true, LOG_FORMAT=json). The log may be rotated and the
    service restarted meanwhile. It holds no secrets, paths, queries or bodies.

    \b
      tenantry logs tail
      tenantry logs tail --tenant acme --status 4xx,5xx --since 1h
      journalctl -fu 'tenantry@*' -o cat | tenantry logs tail -

    Exits with 2 if there is no log. `tenantry events show EVENT` shows what an event changed.
    """
    viewer = _Viewer(
        _filter_of(
            tenants,
            statuses,
            only,
            since,
        ),
        as_json=as_json,
    )
    if lines is None and since is None:
        lines = _LINES
    try:
        if file == _STDIN:
            _follow_stdin(viewer)
        else:
            _follow_file(
                _log_path(file),
                viewer,
                lines,
                follow=follow,
            )
    except (BrokenPipeError, KeyboardInterrupt):  # the reader has enough, as `head` does; Ctrl-C
        discard_stdout()


def _log_path(file: str | None) -> Path:
    """Return the path of the log. Raises `CommandError`."""
    values, is_demo = local_values()
    name = Settings.log_requests_to.name
    set_here = inherited([name]).get(name, "").strip()
    found = file or set_here or values.get(name, "").strip()
    if not found:
        raise CommandError(
            f"There is no request log: name its FILE, or set {name} as at the service. If the service logs to stderr "
            "(LOG_REQUESTS=true, LOG_FORMAT=json), pipe its log: ... | tenantry logs tail -\n"
            "Without access to the service's log: tenantry events list",
            USAGE,
        )
    path = Path(found)
    if path.exists():
        return path
    setting = "the demo" if is_demo and found == values[name] else name
    source = "" if file else f" of {setting}"
    raise CommandError(
        f"The request log{source} does not exist: {path}. Start the service first.", USAGE
    )


class _Filter(NamedTuple):
    """Which lines to show; without ``tenants`` those of every tenant."""

    tenants: frozenset[str]
    statuses: re.Pattern[str]
    kinds: Sequence[str]
    since: datetime

    def passes(self, line: RequestLine) -> bool:
        kind = "requests" if line.event is None else "events"
        return (
            line.tenant in (self.tenants or {line.tenant})
            and self.statuses.fullmatch(str(line.status)) is not None
            and kind in self.kinds
            and line.time >= self.since
        )


def _filter_of(
    tenants: Sequence[str],
    statuses: Sequence[str],
    only: str | None,
    since: datetime | None,
) -> _Filter:
    return _Filter(
        frozenset(tenants),
        re.compile("|".join(statuses) or "..."),
        (only,) if only else _KINDS,
        since or datetime.min.replace(tzinfo=UTC),
    )


class _Viewer:
    """Shows the lines that pass the filter; a hint once if nothing is a request."""

    def __init__(self, wanted: _Filter, *, as_json: bool) -> None:
        self._wanted = wanted
        self._as_json = as_json
        self._console = Console(highlight=False)
        self._others = 0

    def select(self, line: bytes) -> RequestLine | None:
        """Return a line that passes."""
        parsed = parse_line(line)
        if parsed is None:
            self._others += 1
            if self._others == _LINES_BEFORE_HINT:
                say(_HINT)
            return None
        self._others = -sys.maxsize  # some are requests
        return parsed if self._wanted.passes(parsed) else None

    def show_each(self, lines: Iterable[bytes]) -> None:
        for parsed in filter(None, map(self.select, lines)):
            self.show(parsed)

    def show(self, line: RequestLine) -> None:
        if self._as_json:
            click.echo(request_json(line))
        else:
            with self._console.capture() as captured:
                self._console.print(request_text(line), soft_wrap=True)
            click.echo(captured.get(), nl=False, color=True)


def request_json(line: RequestLine) -> str:
    return json_text(msgspec.json.encode(line))


def request_text(line: RequestLine) -> Text:
    taken = "" if line.duration_ms is None else f"{line.duration_ms:,.0f} ms"
    return Text.assemble(
        (f"{line.time.astimezone():%H:%M:%S}", "dim"),
        "  ",
        (str(line.status), _status_style(line.status)),
        f"{taken:>10}",
        *((f"  {printable(text or '-')}", style) for text, style in _details(line)),
    )


def _details(line: RequestLine) -> Iterator[tuple[str | None, str]]:
    """Yield what a line says, with styles."""
    if line.event:
        yield from ((line.event_type, ""), (line.event, ""))
    else:
        yield from ((f"{line.method:<6}", ""), (line.route, ""))
    if line.outcome not in (None, "", "ok"):
        error_style = "" if line.status < _FIRST_ERROR else "red"
        yield line.outcome, CELL_STYLES.get(line.outcome, error_style)
    principal = line.principal if line.principal != "none" else None
    yield from ((part, "dim") for part in (line.tenant, principal, line.request_id) if part)


def _status_style(status: int) -> str:
    if status >= _FIRST_SERVER_ERROR:
        return "bold red"
    return "yellow" if status >= _FIRST_ERROR else "green"


def _follow_stdin(viewer: _Viewer) -> None:
    stream = cast("io.BufferedReader", sys.stdin.buffer)
    lines = LineBuffer()
    while block := stream.read1(_BLOCK):
        viewer.show_each(lines.add(block))
    viewer.show_each(lines.add(b"\n"))


def _follow_file(
    path: Path,
    viewer: _Viewer,
    last: int | None,
    *,
    follow: bool,
) -> None:
    with closing(LogFile(path)) as file:
        for parsed in deque(filter(None, map(viewer.select, file.read())), maxlen=last):
            viewer.show(parsed)
        while follow:
            time.sleep(_POLL_SECONDS)
            viewer.show_each(file.read())
