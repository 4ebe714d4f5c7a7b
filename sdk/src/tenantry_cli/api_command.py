"""Commands that use a service: their options, output and completion, and messages for failures."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NoReturn, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from tenantry_cli import output
from tenantry_cli.client_configuration import (
    DEFAULT_SOURCE,
    ClientConfiguration,
    ServiceOptions,
    Target,
    config_path,
    read_config,
)
from tenantry_cli.options import Decorator, yes_option
from tenantry_cli.output import (
    FAILED,
    NOT_AUTHENTICATED,
    OUT_OF_REACH,
    USAGE,
    CommandError,
    printable,
    printable_lines,
)
from tenantry_cli.sign_in_storage import StoreError
from tenantry_cli.times import utc_now
from tenantry_sdk import Fault, NewApiKey, Pager, Secret, Tenantry, errors
from tenantry_sdk.errors import APIError, TenantryError

T = TypeVar("T")
Rows = Iterable[tuple[str, str]]
"""Names and values of an object, for people."""

_NOT_OURS: Final = "http_404"
"""The code of a 404 that is no problem document of the service."""
_SECRET: Final = re.compile(r"svc_(?:live|test)_|[a-z0-9]{2,16}_(?:live|test)_[0-9A-Za-z]{49}")
"""The beginning of a key's secret; with another prefix than ``svc``, all of it."""
_PAGE: Final = 100
"""The largest page of a list."""
_CODES: Final[dict[int, int]] = {
    **dict.fromkeys((400, 422), USAGE),
    **dict.fromkeys((401, 403), NOT_AUTHENTICATED),
    404: output.NOT_FOUND,
    **dict.fromkeys((408, 502, 503, 504), OUT_OF_REACH),
}
# The status of these errors is misleading.
_CODES_OF_REASONS: Final[dict[str, int]] = {
    _NOT_OURS: OUT_OF_REACH,
    "org_mismatch": USAGE,
    "feature_not_granted": FAILED,
    "plan_limit_reached": FAILED,
    "quota_exceeded": FAILED,
    "provider_refused": FAILED,
}
_NEXT_STEPS: Final[dict[str, str | None]] = {
    "validation_failed": None,  # the faults say it
    "no_organization": "Name one: --org ORG. Or ask an owner to add you as a member.",
    "email_not_verified": "Accept with the link of that mail, or run: tenantry invitations confirm LINK",
    "org_mismatch": "The credential is of another organization: leave out --org, or use one of that organization.",
    "last_owner": "Create another owner or OWNER key first, or pass --force.",
}
_SIGN_IN: Final = "Sign in again: tenantry login"
# The identity provider has ended the sign-in (RFC 6749, 5.2), or the user did.
_ENDED: Final = {
    "signed_out",
    "invalid_grant",
    "invalid_client",
    "unauthorized_client",
    "interaction_required",
}
# Neither a retry nor another sign-in helps.
_FAULTY: Final = {"invalid_request", "invalid_scope", "invalid_target", "unsupported_grant_type"}
_KEY_HELP: Final = (
    "A file with the API key. Default: TENANTRY_API_KEY, or the sign-in of `tenantry login`."
)


def _complete_profiles(
    _context: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    try:
        names = read_config(config_path(os.environ)).profiles
    except CommandError:  # a completion cannot show errors
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class _ConnectionOption(click.Option):
    """An option that the help of a command only names: `tenantry help all` has its text."""

    def get_help_record(self, ctx: click.Context) -> None:
        """Return nothing."""


_SERVICE_OPTIONS: Final = (
    _ConnectionOption(
        ["--base-url"],
        metavar="URL",
        help="The service's address. [TENANTRY_BASE_URL; http://127.0.0.1:3001]",
    ),
    _ConnectionOption(
        ["--profile"],
        metavar="NAME",
        help="A profile of the configuration file. [TENANTRY_PROFILE; default]",
        shell_complete=_complete_profiles,
    ),
    _ConnectionOption(
        ["--org"],
        metavar="ORG",
        help="The organization, for users of several. [TENANTRY_ORG]",
    ),
    _ConnectionOption(
        ["--api-key-file"],
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help=_KEY_HELP,
    ),
)


def connection_options() -> list[tuple[str, str]]:
    """Return the options that name a service and a credential, with their help."""
    return [
        (f"{option.opts[0]} {option.metavar}", option.help or "") for option in _SERVICE_OPTIONS
    ]


class CommandFailure(msgspec.Struct, frozen=True, rename="camel"):
    """A failed command; with ``--json`` the value of ``error``."""

    detail: str
    exit_code: int
    service: str | None = None
    code: str | None = None
    status: int | None = None
    errors: list[Fault] = []
    next_step: str | None = None
    request_id: str | None = None

    def print(self, *, as_json: bool) -> None:
        document = output.json_text(msgspec.json.encode({"error": self}))
        lines = [document] if as_json else self._lines()
        click.echo("\n".join(lines), err=True)

    def exit(self, *, as_json: bool) -> NoReturn:
        self.print(as_json=as_json)
        sys.exit(self.exit_code)

    def _lines(self) -> Iterator[str]:
        reason = "" if self.status is None else f" ({self.status} {printable(self.code or '')})"
        yield printable_lines(self.detail) + reason
        for fault in self.errors:
            yield f"  {printable(fault.location)}: {printable(fault.message)}"
        if self.next_step:
            yield self.next_step
        if self.service:
            yield f"({self._request()}at {self.service})"

    def _request(self) -> str:
        return f"request {printable(self.request_id)} " if self.request_id else ""


def failure_of(error: TenantryError, target: Target, subject: str = "") -> CommandFailure:
    """Convert an error of the SDK into a message for the user, with an exit code. The message of a
    rejection begins with ``subject``.
    """
    service = target.base_url.value
    if isinstance(error, APIError):
        return CommandFailure(
            f"{subject}{error.detail}",
            exit_code_of(error),
            service,
            error.code,
            error.status_code,
            error.errors,
            _next_step(error, target),
            error.request_id,
        )
    detail, code, next_step = _explain(error, target)
    return CommandFailure(detail, code, service, next_step=next_step)


def exit_code_of(error: APIError) -> int:
    """Return the exit code of a rejection."""
    return _CODES_OF_REASONS.get(error.code, _CODES.get(error.status_code, FAILED))


@contextmanager
def exiting_on_failure(target: Target, *, as_json: bool) -> Iterator[None]:
    """End the command with a message if the block raises an error of the SDK."""
    try:
        yield
    except TenantryError as error:
        failure_of(error, target).exit(as_json=as_json)


def _explain(error: TenantryError, target: Target) -> tuple[str, int, str | None]:
    """Return what happened, the exit code and the next step, for an error without a response."""
    match error:
        case errors.ConnectionFailedError():
            return f"There was no answer. {error}", OUT_OF_REACH, _hint(error, target)
        case errors.TokenRefreshError(code=code) if code in _ENDED:
            return f"Your sign-in has ended. {error}", NOT_AUTHENTICATED, _SIGN_IN
        case errors.TokenRefreshError(code=code) if code not in _FAULTY:
            return str(error), OUT_OF_REACH, None
        case errors.ConfigurationError() if target.tokens and not isinstance(error, StoreError):
            return str(error), NOT_AUTHENTICATED, _SIGN_IN
        case errors.LostKeyError(key_id=str(key_id)):
            return str(error), FAILED, f"tenantry keys revoke {key_id}"
    return str(error), FAILED, None


def _next_step(error: errors.APIError, target: Target) -> str | None:
    is_rejected = error.status_code == errors.AuthenticationError.status
    if is_rejected and target.tokens is not None:
        return _SIGN_IN
    if error.retry_after is not None:
        return f"Try again in {error.retry_after:.0f} s."
    if error.code == _NOT_OURS:
        base_url = target.base_url
        return f"{base_url.value} (from {base_url.source}) is not the address of tenantry: another server answered."
    step = _NEXT_STEPS.get(error.code, error.next_step)
    if is_rejected and step is not None:
        return f"{step} This one is from {target.credential}."
    return step


def _hint(error: errors.ConnectionFailedError, target: Target) -> str:
    if error.idempotency_key is not None:
        return "The service may have carried the request out: check before you try again."
    if isinstance(error, errors.TokenTimedOutError):
        return "Try again in a moment."
    if target.base_url.source == DEFAULT_SOURCE:
        return (
            "No service is configured: set TENANTRY_BASE_URL, pass --base-url, or run "
            f"`{output.own_command()} config set base_url URL`. On this machine: {output.own_command()} demo"
        )
    if target.demo is None:
        return f"Is the address right? It is from {target.base_url.source}."
    folder = target.demo.folder
    return f"The demo in {folder} is not running. Start it in {folder.parent}: {output.own_command()} demo"


@dataclass
class ApiContext:
    """The service, during one command."""

    target: Target
    client: Tenantry
    _: KW_ONLY
    as_json: bool
    now: datetime = field(default_factory=utc_now)

    @property
    def org_id(self) -> str:
        """The organization that the command names, or the credential's."""
        return self.target.org or self.client.auth.whoami().org_id

    def say(self, message: str) -> None:
        """Print a message for people on stderr."""
        if not self.as_json or sys.stderr.isatty():
            output.say(message)

    def print_secret(self, key: NewApiKey, message: str) -> None:
        """Print a new key's secret on stdout; if that fails, name the key that the user must
        revoke.
        """
        try:
            self.done(key, message, key.secret.reveal())
        except OSError as error:
            output.discard_stdout()
            raise CommandError(
                f"{key.id} was created, but its secret could not be written ({error.strerror}), and is lost.\n"
                f"Revoke the key: tenantry keys revoke {key.id}"
            ) from None

    def check_stdout(self) -> None:
        """Raise `CommandError` if stdout is closed, before a secret is created."""
        try:
            os.fstat(1)
        except OSError:
            raise CommandError(
                "stdout is closed, so the secret would be lost. Nothing was done.", USAGE
            ) from None

    def end_each(
        self,
        ids: Iterable[str],
        question: Callable[[str], str],
        end: Callable[[str], object],
        verb: str,
        *,
        yes: bool,
        **outcome: object,
    ) -> None:
        """End several objects, after one confirmation each; ``verb`` and ``outcome`` describe an
        ended one.

        Continues after a failure; the exit code is that of the first one.
        """
        unique = list(dict.fromkeys(ids))
        for one in [] if yes else unique:
            output.confirm(question(one))
        codes = [
            self._end(
                one,
                end,
                verb,
                outcome,
            )
            for one in unique
        ]
        if failed := next(filter(None, codes), 0):
            sys.exit(failed)

    def _end(
        self,
        one: str,
        end: Callable[[str], object],
        verb: str,
        outcome: dict[str, object],
    ) -> int:
        """End an object and print that, or why not; return the exit code."""
        try:
            end(one)
        except APIError as error:
            failure = failure_of(error, self.target, f"{one}: ")
            failure.print(as_json=self.as_json)
            return failure.exit_code
        if self.as_json:
            output.print_json_line({"id": one, **outcome})
        else:
            self.say(f"{verb} {one}.")
        return 0

    def done(
        self,
        value: Any,  # noqa: ANN401
        message: str,
        result: str = "",
    ) -> None:
        """Report a change: with ``--json`` the object, else a message for people, and the result on
        stdout.
        """
        if self.as_json:
            output.print_json(value, Secret.reveal)
        else:
            self.say(message)
            if result:
                click.echo(result)

    def record(self, value: Any, rows: Iterable[tuple[str, str]]) -> None:  # noqa: ANN401
        """Print an object as JSON, or as ``rows`` of a name and a value."""
        output.print_record(value, rows, as_json=self.as_json)

    def list(
        self,
        find: Callable[..., Pager[T]],
        columns: Sequence[output.Column],
        nothing: str,
        *,
        limit: int | None = None,
        **filters: str | None,
    ) -> None:
        """Print a list: as lines of JSON page by page, or as a table; ``nothing`` is the message if
        it is empty.
        """
        items = islice(find(limit=min(limit or _PAGE, _PAGE), **filters), limit)
        try:
            output.print_list(items, columns, nothing, as_json=self.as_json)
        except BrokenPipeError:  # the reader has enough, as `head` does
            output.discard_stdout()


@contextmanager
def _errors_as_json(*, as_json: bool) -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        if not as_json:
            raise
        CommandFailure(error.format_message(), error.exit_code).exit(as_json=True)


class ServiceCommand(click.Command):
    """A command with the options that name a service; its callback gets them, and ``as_json``."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  # click's own, here and below
        json_help: str = "As one JSON document.",
        service_options: Sequence[str] = ServiceOptions._fields,
        **more: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **more)
        self.params.append(click.Option(["--json", "as_json"], is_flag=True, help=json_help))
        connection = [option for option in _SERVICE_OPTIONS if option.name in service_options]
        self.params += connection
        names = ", ".join(option.opts[0] for option in connection)
        self.epilog = f"Also {names}: see tenantry help all."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; with ``--json`` among them, errors are JSON too."""
        with _errors_as_json(as_json="--json" in args and not ctx.resilient_parsing):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Call the callback with the options that name the service."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # for terminals without Unicode
        options = _pop_service_options(ctx)
        as_json = ctx.params.pop("as_json")
        with _errors_as_json(as_json=as_json):
            try:
                return self.call(ctx, options, as_json=as_json)
            except TenantryError as error:
                raise CommandError(str(error)) from None
            except UnicodeEncodeError:
                raise click.UsageError("An argument is not UTF-8.", ctx) from None

    def call(
        self,
        ctx: click.Context,
        options: ServiceOptions,
        *,
        as_json: bool,
    ) -> object:
        return self._run(ctx, options, as_json=as_json)

    def _run(self, ctx: click.Context, service: object, **more: object) -> object:
        assert self.callback is not None  # noqa: S101
        return ctx.invoke(
            self.callback,
            service,
            **more,
            **ctx.params,
        )


class ApiCommand(ServiceCommand):
    """A command that calls the API: its callback gets an `ApiContext`. An SDK error ends it with a
    message.
    """

    def call(
        self,
        ctx: click.Context,
        options: ServiceOptions,
        *,
        as_json: bool,
    ) -> object:
        target = ClientConfiguration(options, os.environ).target()
        with exiting_on_failure(target, as_json=as_json):
            api = ApiContext(target, target.client(), as_json=as_json)
            if target.demo is not None:
                api.say(
                    f"Using the demo in {target.demo.folder} at {target.base_url.value}, with {target.key_words}."
                )
            try:
                return self._run(ctx, api)
            finally:
                if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                    # waits for a token refresh, so that the new token is not lost
                    api.client.close()


def _pop_service_options(ctx: click.Context) -> ServiceOptions:
    """Remove and return the options that name the service; a profile may also stand before the
    command.
    """
    options = ServiceOptions(
        **{name: ctx.params.pop(name, None) for name in ServiceOptions._fields}
    )
    if options.profile is not None:
        return options
    return options._replace(profile=ctx.find_root().params.get("profile"))


def id_argument(
    name: str,
    metavar: str,
    resource: str,
    *,
    required: bool = True,
    many: bool = False,
    **filters: str,
) -> Decorator:
    """Add an argument for an id, or for ``many``; the list of the client's resource completes
    it.
    """
    return click.argument(
        name,
        metavar=f"{metavar}..." if many else metavar,
        nargs=-1 if many else 1,
        required=required,
        type=parse_id,
        shell_complete=partial(_complete_ids, resource, filters),
    )


def show_command(resource: str, metavar: str) -> Callable[[Callable[..., Rows]], click.Command]:
    """Make the command ``show`` of the client's resource from a function that returns the rows of
    an object.
    """

    def made(rows: Callable[[ApiContext, Any], Rows]) -> click.Command:
        @click.command("show", cls=ApiCommand, help=rows.__doc__)
        @id_argument("object_id", metavar, resource)
        def show(api: ApiContext, *, object_id: str) -> None:
            found = _resource(api.client, resource).get(object_id)
            api.record(found, rows(api, found))

        return show

    return made


def end_command(
    name: str,
    resource: str,
    metavar: str,
    done: str,
    *,
    completes: str | None = None,
    **outcome: object,
) -> Callable[[Callable[[ApiContext, str], str]], click.Command]:
    """Make a command that ends objects of the client's resource from a function that returns the
    question to confirm for an id.

    ``done`` and ``outcome`` describe an ended object. The shell completes ids of the status
    ``completes``.
    """
    filters: dict[str, Any] = {} if completes is None else {"status": completes}
    article = "an" if metavar[0] in "AEIOU" else "a"
    json_help = f"One line of JSON {article} {metavar.lower()}."

    def made(question: Callable[[ApiContext, str], str]) -> click.Command:
        @click.command(name, cls=ApiCommand, help=question.__doc__, json_help=json_help)
        @id_argument("ids", metavar, resource, many=True, **filters)
        @yes_option
        def end(api: ApiContext, *, ids: tuple[str, ...], yes: bool) -> None:
            delete = _resource(api.client, resource).delete
            api.end_each(ids, partial(question, api), delete, done, yes=yes, **outcome)

        return end

    return made


def _resource(client: Tenantry, name: str) -> Any:  # noqa: ANN401  # one of the client's
    return attrgetter(name)(client)


def parse_id(text: str) -> str:
    """Return an id that can be part of an address, and is not a secret. Raises
    `click.BadParameter`.
    """
    if text.strip(" .") == "":
        raise click.BadParameter(f"{text!r} is not an id")
    if _SECRET.match(text):
        raise click.BadParameter("this looks like a key's secret; an id begins with key_")
    return text


def _complete_ids(
    resource: str,
    filters: dict[str, str],
    ctx: click.Context,
    param: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Complete the newest ids of a list; nothing if the service fails."""
    given = ctx.params.get(param.name or "")
    taken = given if isinstance(given, tuple) else ()
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            items = _newest(resource, filters, ctx)
    except (Exception, SystemExit):  # noqa: BLE001  # a completion cannot show errors
        return []
    return [
        _completion(item)
        for item in items
        if item.id.startswith(incomplete) and item.id not in taken
    ]


def _newest(resource: str, filters: dict[str, str], ctx: click.Context) -> list[Any]:
    target = ClientConfiguration(_pop_service_options(ctx), os.environ).target()
    token = target.tokens.store.load() if target.tokens and target.tokens.store else None
    if token is not None:  # even an expired one: a refresh is too slow
        target = target._replace(key=token.access_token, tokens=None)
    with target.client(timeout=2.0, retries=0) as client:
        page: list[Any] = _resource(client, resource).list(limit=_PAGE, **filters).first_page().data
    return page


def _completion(item: Any) -> CompletionItem:  # noqa: ANN401  # any of the SDK's records
    names = (
        getattr(item, field, None) for field in ("name", "org_name", "user_id", "email", "type")
    )
    name = str(next(filter(None, names), ""))
    return CompletionItem(printable(item.id), help=printable(name))
