"""The commands of the operator: each works over HTTP or on the database."""

import os
import re
from contextlib import ExitStack
from typing import Any, Final, Literal

import click

from tenantry.cli.operator import TOKEN, Operator
from tenantry_cli.demo_folder import environment_over_env_file, find_demo
from tenantry_cli.output import NOT_AUTHENTICATED, USAGE, CommandError

_BASE_URL: Final = "TENANTRY_BASE_URL"
_DATABASE_URLS: Final = ("DATABASE_URL", "DATABASE_URL_FILE")
_KEY: Final = re.compile(r"[a-z0-9]{2,16}_(?:live|test)_.*")
_NEITHER: Final = (
    f"Set {TOKEN} and {_BASE_URL} to ask a service over HTTP, or DATABASE_URL to work on its "
    "database, on the service's host."
)
_BOTH: Final = f"{TOKEN} and DATABASE_URL are both set: pass --over http or --over database."

Road = Literal["http", "database"]


class OperatorCommand(click.Command):
    """A command of the operator: its callback gets an `Operator`, which ``--over`` chooses."""

    def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401  # click's own
        super().__init__(*args, **more)
        self.params.append(
            click.Option(
                ["--over"],
                type=click.Choice(["http", "database"]),
                help=f"Where to work, if {TOKEN} and DATABASE_URL are both set.",
            )
        )

    def invoke(self, ctx: click.Context) -> object:
        """Call the callback, and close the operator's connections."""
        over: Road | None = ctx.params.pop("over")
        assert self.callback is not None  # noqa: S101
        with ExitStack() as stack:
            return ctx.invoke(self.callback, _operator(over, stack), **ctx.params)


def _operator(over: Road | None, stack: ExitStack) -> Operator:
    """Return the operator of a road; ``stack`` closes its connections. Raises `CommandError`."""
    token = os.environ.get(TOKEN, "").strip()
    if (over or _only_road(token)) == "http":
        from tenantry.cli.remote_operator import RemoteOperator  # noqa: PLC0415  # one of the two

        return RemoteOperator(_checked(token), stack)
    from tenantry.cli.host_operator import HostOperator  # noqa: PLC0415

    return HostOperator(stack)


def _only_road(token: str) -> Road:
    """Return the road that the environment and `.env` set up. Raises `CommandError` for both and
    for none.
    """
    values = environment_over_env_file(os.environ)
    has_database = any(values.get(name, "").strip() for name in _DATABASE_URLS)
    if token and has_database:
        raise CommandError(_BOTH, USAGE)
    if token and os.environ.get(_BASE_URL, "").strip():
        return "http"
    if has_database or find_demo(values) is not None:
        return "database"
    raise CommandError(_NEITHER, USAGE)


def _checked(token: str) -> str:
    """Return the operator's token. Raises `CommandError` without one, and for an API key."""
    if not token:
        raise CommandError(f"--over http needs {TOKEN} (the service's OPERATOR_TOKEN).", USAGE)
    if _KEY.fullmatch(token):
        raise CommandError(
            f"{TOKEN} holds an API key. It takes the service's OPERATOR_TOKEN; an API key belongs in "
            "TENANTRY_API_KEY, which `tenantry keys` and the other commands of an organization use.",
            NOT_AUTHENTICATED,
        )
    return token
