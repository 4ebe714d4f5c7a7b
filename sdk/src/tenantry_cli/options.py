"""Options that several commands have."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import click

from tenantry_cli.times import future, parse_duration

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

limit_option: Final = click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="At most this many, the newest.",
)
tenants_option: Final = click.option(
    "--org",
    "tenants",
    multiple=True,
    metavar="ORG",
    help="Only this tenant; repeatable.",
)
role_option: Final = click.option(
    "--role",
    default="member",
    show_default=True,
    help="The user's role: owner, admin, member, or one of the service's own.",
)
expires_in_option: Final = click.option(
    "--expires-in",
    type=parse_duration,
    metavar="LENGTH",
    help="How long it works, such as 90d or 12h.",
)
expires_at_option: Final = click.option(
    "--expires-at",
    type=future,
    metavar="TIME",
    help="When it expires: an RFC 3339 time, or 90d for in 90 days.",
)
reason_option: Final = click.option(
    "--reason", metavar="TEXT", help="Why: the audit trail keeps it."
)
yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def expiry_of(
    now: datetime, expires_in: timedelta | None, expires_at: datetime | None
) -> datetime | None:
    """Return the moment that ``--expires-in`` or ``--expires-at`` names. Raises
    `click.UsageError`.
    """
    if expires_in is None:
        return expires_at
    if expires_at is not None:
        raise click.UsageError("Pass --expires-in or --expires-at, not both.")
    if not expires_in:
        raise click.BadParameter("must be longer than zero", param_hint="--expires-in")
    return now + expires_in


def status_option(of: str, *statuses: str) -> Decorator:
    """Add ``--status``; ``of`` says what has one: ``members``."""
    return click.option("--status", type=click.Choice(statuses), help=f"Only {of} of this status.")


def json_option(help: str = "Print JSON.") -> Decorator:  # noqa: A002  # click's name
    """Add ``--json``, which the command gets as ``as_json``."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help=help,
    )


def dry_run_option(help: str) -> Decorator:  # noqa: A002  # click's name
    """Add ``--dry-run``, with which the command writes nothing."""
    return click.option("--dry-run", is_flag=True, help=help)
