"""The client of a command: it is made from the target, and told of in the same way by all commands."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import click
import msgspec

from tenantry.cli.api import failures, tables
from tenantry.cli.api.target import Target
from tenantry.cli.api.waits import Waits
from tenantry.cli.exit_codes import USAGE, CommandError
from tenantry.cli.text import json_text, lines
from tenantry_sdk import NewApiKey, Pager, RefreshToken, Secret, Tenantry
from tenantry_sdk.errors import APIError, TenantryError

T = TypeVar("T")

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
                failure = failures.failure_of(error, self.target)
                failures.tell(msgspec.structs.replace(failure, detail=f"{one}: {failure.detail}"), as_json=self.as_json)
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
            tables.print_rows(rows)

    def list(self, pager: Pager[T], limit: int | None, columns: Sequence[tables.Column[T]], nothing: str) -> None:
        """A list, page by page as it comes: a line of JSON an item, or a table; ``nothing`` is said of an empty one."""
        pages = _pages(pager, limit)
        try:
            if self.as_json:
                for page in pages:
                    for item in page:
                        click.echo(_encoded(item))
            elif not tables.print_pages(pages, columns):
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
            failures.end(error, self.target, as_json=self.as_json)


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
