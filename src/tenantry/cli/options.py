"""Options that several commands have."""

from collections.abc import Callable
from typing import Any, Final

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

limit_option: Final = click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="At most this many, the newest.",
)
tenants_option: Final = click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="ORG",
    help="Only this tenant; repeatable.",
)
yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


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
