"""Commands that use a service: their options and completion."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from tenantry.cli.api_client import PAGE, ApiContext, CommandFailure, wait_times
from tenantry.cli.client_configuration import ClientConfiguration, ServiceOptions, Target
from tenantry.cli.output import FAILED, USAGE, CommandError, printable
from tenantry_sdk import Tenantry
from tenantry_sdk.errors import TenantryError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_LISTS: Final[dict[str, Callable[[Tenantry], Any]]] = {
    "active keys": lambda client: client.api_keys.list(status="active", limit=PAGE),
    "keys": lambda client: client.api_keys.list(limit=PAGE),
    "projects": lambda client: client.projects.list(limit=PAGE),
    "tenants": lambda client: client.tenants.list(limit=PAGE),
    "members": lambda client: client.members.list(limit=PAGE),
    "memberships": lambda client: client.memberships.list(limit=PAGE),
    "invitations": lambda client: client.memberships.list(status="invited", limit=PAGE),
    "events": lambda client: client.billing.events.list(limit=PAGE),
}
_SERVICE_OPTIONS: Final = {
    "base_url": ("URL", "The service's address. [TENANTRY_BASE_URL; http://127.0.0.1:3001]"),
    "profile": ("NAME", "A profile of the configuration file. [TENANTRY_PROFILE; default]"),
    "organization": ("ORG", "The organization, for users of several. [TENANTRY_ORGANIZATION]"),
    "api_key_file": ("FILE", "A file with the API key. Default: TENANTRY_API_KEY, or the sign-in of `tenantry login`."),
}


limit_option: Final = click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the newest so many.")
yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


class ServiceCommand(click.Command):
    """A command with the options that name a service; its callback gets them, and ``as_json``.

    Reports a `CommandError`, or an error of the SDK, on stderr and exits.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  # click's own, here and below
        json_help: str = "As one JSON document.",
        service_options: Sequence[str] = ServiceOptions._fields,
        **more: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **more)
        self.params.append(click.Option(["--json", "as_json"], is_flag=True, help=json_help))
        for name in service_options:
            metavar, text = _SERVICE_OPTIONS[name]
            kind = click.Path(dir_okay=False) if metavar == "FILE" else None
            self.params.append(click.Option([f"--{name.replace('_', '-')}"], metavar=metavar, help=text, type=kind))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; with ``--json`` among them, errors are JSON too."""
        as_json = "--json" in args  # the parser empties the list
        try:
            rest = super().parse_args(ctx, args)
            _check_encoding(ctx)
        except click.UsageError as error:
            if not as_json or ctx.resilient_parsing:
                raise
            CommandFailure(error.format_message(), USAGE).exit(as_json=True)
        return rest

    def invoke(self, ctx: click.Context) -> object:
        """Call the callback with the options that name the service."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # for terminals without Unicode
        options, as_json = service_options_of(ctx), ctx.params.pop("as_json")
        for name in ServiceOptions._fields:
            ctx.params.pop(name, None)
        try:
            return self.call(ctx, options, as_json=as_json)
        except CommandError as error:
            CommandFailure(str(error), error.code).exit(as_json=as_json)
        except TenantryError as error:
            CommandFailure(str(error), FAILED).exit(as_json=as_json)
        except click.UsageError as error:
            if not as_json:
                raise
            CommandFailure(error.format_message(), USAGE).exit(as_json=True)

    def call(self, ctx: click.Context, options: ServiceOptions, *, as_json: bool) -> object:
        assert self.callback is not None  # noqa: S101
        return ctx.invoke(self.callback, options, as_json=as_json, **ctx.params)


class ApiCommand(ServiceCommand):
    """A command that calls the API: its callback gets an `ApiContext`."""

    def call(self, ctx: click.Context, options: ServiceOptions, *, as_json: bool) -> object:
        assert self.callback is not None  # noqa: S101
        target = ClientConfiguration(options, os.environ).target()
        with ApiContext(target, as_json=as_json, backoff=wait_times().backoff) as api:
            return ctx.invoke(self.callback, api, **ctx.params)


def _check_encoding(ctx: click.Context) -> None:
    for name, value in ctx.params.items():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, str) and any("\ud800" <= letter <= "\udfff" for letter in one):
                raise click.UsageError(f"{name.replace('_', '-')}: this is not UTF-8.", ctx)


def service_options_of(ctx: click.Context) -> ServiceOptions:
    """Return the options that name the service; a profile may also stand before the command."""
    options = ServiceOptions(**{name: ctx.params.get(name) for name in ServiceOptions._fields})
    return options if options.profile is not None else options._replace(profile=ctx.find_root().params.get("profile"))


def id_argument(name: str, metavar: str, complete: str, **more: Any) -> Decorator:  # noqa: ANN401  # click's own
    """Add an argument for an id; ``complete`` names the list that completes it."""
    return click.argument(name, metavar=metavar, type=parse_id, shell_complete=_completer(complete), **more)


def ids_argument(name: str, metavar: str, complete: str) -> Decorator:
    """Add an argument for one or more ids."""
    return id_argument(name, f"{metavar}...", complete, nargs=-1, required=True)


def parse_id(text: str) -> str:
    """Return an id that can be part of an address, and is not a secret. Raises `click.BadParameter`."""
    if text.strip(" .") == "":
        raise click.BadParameter(f"{text!r} is not an id")
    if text.startswith(("svc_live_", "svc_test_")):
        raise click.BadParameter("this looks like a key's secret; an id begins with key_")
    return text


def _completer(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a function that completes the newest ids of this kind; it completes nothing if the service fails."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = ctx.params.get(param.name or "")
        taken = given if isinstance(given, tuple) else ()
        discarded = io.StringIO()
        try:
            with contextlib.redirect_stderr(discarded), contextlib.redirect_stdout(discarded):
                target = _without_refresh(ClientConfiguration(service_options_of(ctx), os.environ).target())
                with ApiContext(target, as_json=True, timeout=2.0, attempts=1) as api:
                    items = _LISTS[kind](api.client).first_page().data
        except (Exception, SystemExit):  # noqa: BLE001  # a completion cannot show errors
            return []
        return [
            CompletionItem(printable(item.id), help=_name_of(item))
            for item in items
            if item.id.startswith(incomplete) and item.id not in taken
        ]

    return complete


def _without_refresh(target: Target) -> Target:
    """Use the stored token even if it has expired: a refresh takes too long for a completion."""
    token = target.storage.tokens(target.sign_in).load() if target.sign_in is not None else None
    return target if token is None else target._replace(key=token.access_token, sign_in=None)


def _name_of(item: Any) -> str:  # noqa: ANN401  # any of the SDK's records
    names = (getattr(item, field, None) for field in ("name", "org_name", "user_id", "type"))
    return printable(str(next(filter(None, names), "")))
