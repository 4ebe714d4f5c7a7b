"""What commands that use a service share: the client, its output and its waits."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, Self, TypeVar

import click
import msgspec

from tenantry.cli.exit_codes import FAILED, NOT_AUTHENTICATED, NOT_FOUND, OUT_OF_REACH, USAGE, CommandError
from tenantry.cli.sessions import StoreError
from tenantry.cli.target import Target
from tenantry.cli.text import json_text, lines, own_command, printable
from tenantry_sdk import Fault, NewApiKey, Pager, RefreshToken, Secret, Tenantry, errors
from tenantry_sdk._retry import BACKOFF, Backoff
from tenantry_sdk.errors import APIError, TenantryError


class Waits(NamedTuple):
    """How long a command waits, in seconds. Tests pass shorter values, as click's ``obj``."""

    backoff: Backoff = BACKOFF
    """Between the attempts of a call of the service."""
    provider: float = 10.0
    """For an answer of the identity provider."""
    poll: float = 1.0
    """Minimum polling interval of the device flow (RFC 8628)."""


def waits() -> Waits:
    """Return the waits of the command that runs now."""
    return click.get_current_context().find_object(Waits) or Waits()


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


_CODES: Final[dict[int, int]] = {
    400: USAGE,
    401: NOT_AUTHENTICATED,
    403: NOT_AUTHENTICATED,
    404: NOT_FOUND,
    408: OUT_OF_REACH,
    422: USAGE,
    502: OUT_OF_REACH,
    503: OUT_OF_REACH,
    504: OUT_OF_REACH,
}
# These say something else than their status does.
_CODES_OF_REASONS: Final[dict[str, int]] = {"plan_limit_reached": FAILED, "provider_refused": FAILED}
_NEXT_STEPS: Final = {
    "missing_credential": "Set TENANTRY_API_KEY, pass --api-key-file, or sign in: tenantry login",
    "no_organization": "Say which one: --organization ORG. Or ask an owner to add you as a member.",
    "validation_failed": None,
    "invalid_request": None,
    "last_owner": "Make another owner or OWNER key first, or say --force.",
}
_SIGN_IN: Final = "Sign in again: tenantry login"
# RFC 6749, 5.2; OpenID Connect Core, 3.1.2.6. The identity provider takes this sign-in no more.
_ENDED: Final = {
    "signed_out",
    "invalid_grant",
    "invalid_client",
    "unauthorized_client",
    "access_denied",
    "login_required",
    "interaction_required",
    "consent_required",
}
# Asking again is of no use, and neither is signing in.
_FAULTY: Final = {"invalid_request", "invalid_scope", "invalid_target", "unsupported_grant_type"}


class Failure(msgspec.Struct, rename="camel"):
    """A failed command as it is shown; ``--json`` gives just this, below ``error``."""

    detail: str
    exit_code: int
    service: str | None = None
    code: str | None = None
    status: int | None = None
    errors: list[Fault] = []
    next_step: str | None = None
    request_id: str | None = None


def end(error: errors.TenantryError, target: Target, *, as_json: bool) -> NoReturn:
    """Say on stderr what went wrong and what to do, and exit."""
    end_with(failure_of(error, target), as_json=as_json)


def end_with(failure: Failure, *, as_json: bool) -> NoReturn:
    """The same for a failure that is known already."""
    tell(failure, as_json=as_json)
    sys.exit(failure.exit_code)


def tell(failure: Failure, *, as_json: bool) -> None:
    """Say on stderr what went wrong, and go on."""
    if as_json:
        click.echo(json_text(msgspec.json.encode({"error": failure})), err=True)
    else:
        click.echo("\n".join(_lines(failure)), err=True)


def failure_of(error: errors.TenantryError, target: Target) -> Failure:
    """What an error comes to for the one who gave the command."""
    if isinstance(error, errors.APIError):
        return _refusal(error, target)
    detail, code, next_step = str(error), FAILED, None
    match error:
        case errors.ConnectionFailedError():
            detail, code, next_step = f"There was no answer. {error}", OUT_OF_REACH, _hint(error, target)
        case errors.TokenRefreshError() if error.code in _ENDED:
            detail, code, next_step = f"Your sign-in has ended. {error}", NOT_AUTHENTICATED, _SIGN_IN
        case errors.TokenRefreshError():
            code = FAILED if error.code in _FAULTY else OUT_OF_REACH
        case StoreError():
            pass
        case errors.ConfigurationError() if target.session is not None:
            code, next_step = NOT_AUTHENTICATED, _SIGN_IN
        case errors.LostKeyError(key_id=str()):
            next_step = f"tenantry keys revoke {error.key_id}"
        case _:
            pass
    return Failure(detail, code, target.base_url.value, next_step=next_step)


def _refusal(error: errors.APIError, target: Target) -> Failure:
    return Failure(
        error.detail,
        _CODES_OF_REASONS.get(error.code, _CODES.get(error.status_code, FAILED)),
        target.base_url.value,
        error.code,
        error.status_code,
        error.errors,
        _next_step(error, target),
        error.request_id,
    )


def _next_step(error: errors.APIError, target: Target) -> str | None:
    if error.status_code == errors.AuthenticationError.status and target.session is not None:
        return _SIGN_IN
    if error.retry_after is not None:
        return f"Try again in {error.retry_after:.0f} s."
    step = _NEXT_STEPS.get(error.code, error.next_step)
    if error.status_code == errors.AuthenticationError.status and step is not None:
        return f"{step} This one is from {target.credential}."
    return step


def _hint(error: errors.ConnectionFailedError, target: Target) -> str:
    if error.idempotency_key is not None:
        return "Whether it was carried out is not known: look before you try again."
    if isinstance(error, errors.TokenTimedOutError):
        return "Try again in a moment."
    if target.demo is not None:
        return f"The demo does not seem to run. Start it: {_start_of(target.demo.folder.parent)}"
    return f"Is the address right? It is from {target.base_url.source}."


def _start_of(folder: Path) -> str:
    """What starts the demo that was started in a folder, which may be one above the current one."""
    with contextlib.suppress(OSError):
        if not folder.samefile(Path.cwd()):
            return f"cd {shlex.quote(str(folder))} && {own_command(folder)} demo"
    return f"{own_command()} demo"


def _lines(failure: Failure) -> list[str]:
    reason = f" ({failure.status} {printable(failure.code or '')})" if failure.status is not None else ""
    lines = ["\n".join(map(printable, failure.detail.split("\n"))) + reason]
    lines += [f"  {printable(fault.location)}: {printable(fault.message)}" for fault in failure.errors]
    lines += [failure.next_step] if failure.next_step else []
    if failure.service:
        request = f"request {printable(failure.request_id)} at " if failure.request_id else "at "
        lines.append(f"({request}{failure.service})")
    return lines


PAGE: Final = 100
"""As many items as the service gives at once."""


class Api:
    """The service, for the length of one command. What fails inside the block ends the command, with a message."""

    def __init__(
        self,
        target: Target,
        *,
        as_json: bool,
        timeout: float = 30.0,
        attempts: int = 4,
        waits: Waits = Waits(),  # noqa: B008  # immutable
    ) -> None:
        self.target = target
        self.as_json = as_json
        self._timeout, self._attempts, self._waits = timeout, attempts, waits
        self.now = datetime.now(UTC)

    @cached_property
    def client(self) -> Tenantry:
        """The SDK's client."""
        target = self.target
        session = target.session
        tokens = None
        if session is not None:
            store = target.sessions.tokens(session)
            tokens = RefreshToken(issuer=session.issuer, client_id=session.client_id, store=store)
        return Tenantry(
            target.key,
            base_url=target.base_url.value,
            tokens=tokens,
            organization=target.organization,
            timeout=self._timeout,
            attempts=self._attempts,
            _backoff=self._waits.backoff,
        )

    @property
    def org_id(self) -> str:
        """The organization that the caller acts for: the one that was named, or the credential's."""
        return self.target.organization or self.client.auth.whoami().org_id

    def say(self, message: str) -> None:
        """Chatter: for people alone, on stderr."""
        if not self.as_json or sys.stderr.isatty():
            click.echo(lines(message), err=True)

    def result(self, text: str) -> None:
        """A result: on stdout."""
        click.echo(text)

    def hand_over(self, key: NewApiKey, done: Sequence[str]) -> None:
        """A key that was just made: its secret on stdout, and ``done`` to people.

        The secret is in no other place: where it cannot be written, the command says which key is to be revoked.
        """
        if not self.as_json:
            for message in done:
                self.say(message)
        try:
            if self.as_json:
                self.document(key)
            else:
                self.result(key.secret.reveal())
        except OSError as error:
            _let_go_of_stdout()
            raise CommandError(
                f"{key.id} was made, but its secret could not be written ({error.strerror}), and is lost.\n"
                f"End the key: tenantry keys revoke {key.id}"
            ) from None

    def check_stdout(self) -> None:
        """Raise `CommandError` where there is nothing to write a secret to: before it is made."""
        try:
            os.fstat(1)
        except OSError:
            raise CommandError("stdout is closed, so the secret would be lost. Nothing was done.", USAGE) from None

    def end_each(
        self,
        ids: Iterable[str],
        *,
        question: Callable[[str], str],
        end: Callable[[str], object],
        verb: str,
        outcome: dict[str, object],
        yes: bool,
    ) -> None:
        """End several things, after all have been asked about; ``verb`` and ``outcome`` say of each that it was ended.

        One that cannot be ended keeps none of the others, and the command exits as the first failure does.
        """
        code = 0
        wanted = dict.fromkeys(ids)
        if not yes:
            for one in wanted:
                self.confirm(question(one), yes=False)
        for one in wanted:
            try:
                end(one)
                self._ended(f"{verb} {one}.", {"id": one, **outcome})
            except APIError as error:
                failure = failure_of(error, self.target)
                tell(msgspec.structs.replace(failure, detail=f"{one}: {failure.detail}"), as_json=self.as_json)
                code = code or failure.exit_code
        if code:
            sys.exit(code)

    def document(self, value: Any) -> None:  # noqa: ANN401  # whatever can be JSON
        """One JSON document on stdout."""
        click.echo(msgspec.json.format(_encoded(value), indent=2))

    def _ended(self, message: str, value: object) -> None:
        """A message for people, a line of JSON for machines."""
        if self.as_json:
            click.echo(_encoded(value))
        else:
            self.say(message)

    def record(self, value: Any, rows: Iterable[tuple[str, str]]) -> None:  # noqa: ANN401
        """One object: as JSON, or as ``rows`` of a name and a value."""
        if self.as_json:
            self.document(value)
        else:
            print_rows(rows)

    def list(self, pager: Pager[T], limit: int | None, columns: Sequence[Column[T]], nothing: str) -> None:
        """A list, page by page as it comes: a line of JSON an item, or a table; ``nothing`` is said of an empty one."""
        pages = _pages(pager, limit)
        try:
            if self.as_json:
                for page in pages:
                    for item in page:
                        click.echo(_encoded(item))
            elif not print_pages(pages, columns):
                self.say(nothing)
        except BrokenPipeError:  # whoever reads has enough, as `head` has
            _let_go_of_stdout()

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only with ``--yes``, or where a person at a terminal agrees."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandError(f"{question}\nNobody can be asked here: say --yes.", USAGE)
        if not click.confirm(lines(question), err=True):
            raise CommandError("Nothing was done.")

    def __enter__(self) -> Self:
        if self.target.demo is not None:
            self.say(f"Using the demo in {self.target.demo.folder} at {self.target.base_url.value}, with its live key.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if "client" in self.__dict__ and not isinstance(error, KeyboardInterrupt):
            self.client.close()  # waits for a token that is being renewed, or that would be lost
        if isinstance(error, TenantryError):
            end(error, self.target, as_json=self.as_json)


def _let_go_of_stdout() -> None:
    """Nobody reads any more: what Python still wants to write at its end goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _pages(pager: Pager[T], limit: int | None) -> Iterator[Sequence[T]]:
    left = limit
    for page in pager.pages():
        items = page.data if left is None else page.data[:left]
        yield items
        if left is not None:
            left -= len(items)
            if left <= 0:
                return


def _encoded(value: Any) -> str:  # noqa: ANN401
    return json_text(msgspec.json.encode(value, enc_hook=_revealed))


def _revealed(value: object) -> object:
    """The text of a secret: only what was made to be shown once is encoded."""
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(type(value))
