"""Commands that use a service: their options and completion."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from tenantry.cli.api_client import PAGE, Api
from tenantry.cli.exit_codes import USAGE, CommandError
from tenantry.cli.target import ClientConfiguration, Flags, Target
from tenantry.cli.text import printable
from tenantry_sdk import Tenantry

_SECONDS: Final = 2.0
_LISTS: Final[dict[str, Callable[[Tenantry], Any]]] = {
    "active keys": lambda client: client.api_keys.list(status="active", limit=PAGE),
    "keys": lambda client: client.api_keys.list(limit=PAGE),
    "projects": lambda client: client.projects.list(limit=PAGE),
    "tenants": lambda client: client.tenants.list(limit=PAGE),
    "members": lambda client: client.members.list(limit=PAGE),
    "memberships": lambda client: client.memberships.list(limit=PAGE),
    "invitations": lambda client: client.memberships.list(status="invited", limit=PAGE),
    "events": lambda client: client.billing.events.list(limit=PAGE),
    "plans": lambda client: client.plans.list(),
}


def ids(kind: str, flags: Flags, incomplete: str, taken: Sequence[str] = ()) -> list[CompletionItem]:
    """The newest ids of this kind that begin so, but for those ``taken`` already. Takes two seconds at most."""
    silence = io.StringIO()
    try:
        with contextlib.redirect_stderr(silence), contextlib.redirect_stdout(silence):
            target = _without_renewal(ClientConfiguration(flags, os.environ).target())
            with Api(target, as_json=True, timeout=_SECONDS, attempts=1) as api:
                items = _LISTS[kind](api.client).first_page().data
    except (Exception, SystemExit):  # noqa: BLE001  # whoever presses Tab cannot do anything about it
        return []
    return [
        CompletionItem(printable(item.id), help=_help(item))
        for item in items
        if item.id.startswith(incomplete) and item.id not in taken
    ]


def _without_renewal(target: Target) -> Target:
    """The same with the token at hand, be it over: to renew one takes longer than anybody waits for a completion."""
    if target.session is None:
        return target
    token = target.sessions.tokens(target.session).load()
    return target if token is None else target._replace(key=token.access_token, session=None)


def _help(item: Any) -> str:  # noqa: ANN401  # any of the SDK's records
    """The name beside an id. Names of older objects may contain what a terminal obeys."""
    names = (getattr(item, field, None) for field in ("name", "org_name", "user_id", "type"))
    return printable(str(next(filter(None, names), "")))


_HEADING: Final = "Which service"


def _service_options() -> list[click.Option]:
    return [
        click.Option(
            ["--base-url"], metavar="URL", help="The service's address. [TENANTRY_BASE_URL; http://127.0.0.1:3001]"
        ),
        click.Option(
            ["--profile"], metavar="NAME", help="A profile of the configuration file. [TENANTRY_PROFILE; default]"
        ),
        click.Option(
            ["--organization"], metavar="ORG",
            help="For which one a user acts, of several. [TENANTRY_ORGANIZATION]",
        ),
        click.Option(
            ["--api-key-file"], metavar="FILE", type=click.Path(dir_okay=False),
            help="A file with the API key. Else it is TENANTRY_API_KEY, or what `tenantry login` kept.",
        ),
    ]  # fmt: skip


class ServiceCommand(click.Command):
    """A command about a service. Its callback gets the flags that say which, and whether to write JSON.

    What it raises as `CommandError` is told on stderr, and ends the command.
    """

    service_options: Sequence[str] = Flags._fields

    def __init__(
        self,
        name: str,
        *,
        params: list[click.Parameter] | None = None,
        json_help: str = "As one JSON document.",
        **more: object,
    ) -> None:
        as_json = click.Option(["--json", "as_json"], is_flag=True, help=json_help)
        self._service = [option for option in _service_options() if option.name in self.service_options]
        super().__init__(name, params=[*(params or []), as_json, *self._service], **more)  # type: ignore[arg-type]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; with ``--json`` among them, what is wrong with them is told as JSON too."""
        as_json = "--json" in args
        try:
            rest = super().parse_args(ctx, args)
            _check_texts(ctx)
        except click.UsageError as error:
            if not as_json or ctx.resilient_parsing:
                raise
            _end(error.format_message(), USAGE, as_json=True)
        return rest

    def invoke(self, ctx: click.Context) -> object:
        """Call the callback with the flags taken together."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal that knows ASCII alone is no failure
        flags, as_json = flags_of(ctx), ctx.params.pop("as_json")
        for name in Flags._fields:
            ctx.params.pop(name, None)
        try:
            return self.call(ctx, flags, as_json=as_json)
        except CommandError as error:
            _end(str(error), error.code, as_json=as_json)
        except click.UsageError as error:
            if not as_json:
                raise
            _end(error.format_message(), USAGE, as_json=True)

    def call(self, ctx: click.Context, flags: Flags, *, as_json: bool) -> object:
        """What `invoke` does once it knows the flags."""
        assert self.callback is not None  # noqa: S101
        return ctx.invoke(self.callback, flags, as_json=as_json, **ctx.params)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options, and below them those that all have."""
        own = [param for param in self.get_params(ctx) if param not in self._service]
        for heading, params in (("Options", own), (_HEADING, self._service)):
            records = [record for param in params if (record := param.get_help_record(ctx))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class ApiCommand(ServiceCommand):
    """A command that calls the API: its callback gets an `Api`, and whatever fails there is told and ends it."""

    def call(self, ctx: click.Context, flags: Flags, *, as_json: bool) -> object:
        """Find the service, make the client, and look after failures."""
        from tenantry.cli.api_client import Api, waits  # noqa: PLC0415  # help does not need the SDK

        assert self.callback is not None  # noqa: S101
        with Api(ClientConfiguration(flags, os.environ).target(), as_json=as_json, waits=waits()) as api:
            return ctx.invoke(self.callback, api, **ctx.params)


class Id(click.ParamType[str]):
    """An id of an object of the service."""

    name = "id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The id, which is something that can be a part of an address, and nothing secret."""
        text = str(value)
        if text.strip(" .") == "":
            self.fail(f"{value!r} is no id", param, ctx)
        if text.startswith(("svc_live_", "svc_test_")):
            self.fail("this begins as the secret of a key does; an id begins with key_", param, ctx)
        return text


def _check_texts(ctx: click.Context) -> None:
    """Raise `click.UsageError` for what is no text: it can neither be sent nor shown."""
    for name, value in ctx.params.items():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, str) and not one.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in one):
                raise click.UsageError(f"{name.replace('_', '-')}: this is not UTF-8.", ctx)


def _end(message: str, code: int, *, as_json: bool) -> NoReturn:
    from tenantry.cli.api_client import Failure, end_with  # noqa: PLC0415  # help does without it

    end_with(Failure(message, code), as_json=as_json)


def limit_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--limit`` of lists."""
    option = click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the newest so many.")
    return option(function)


def yes_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--yes`` of whatever ends something."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(function)


def flags_of(ctx: click.Context) -> Flags:
    """What the command line says about the service; a profile may stand before the command, too."""
    flags = Flags(**{name: ctx.params.get(name) for name in Flags._fields})
    return flags if flags.profile is not None else flags._replace(profile=ctx.find_root().params.get("profile"))


def completed(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes ids of this kind (``keys``, ``projects``, ...) by asking the service; nothing where that fails."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:

        taken = ctx.params.get(param.name or "")
        return ids(kind, flags_of(ctx), incomplete, taken if isinstance(taken, tuple) else ())

    return complete
