"""``tenantry entitlements``: the features of your organization, and the use of its quotas."""

from typing import Final

import click

from tenantry_cli.api_command import ApiCommand, ApiContext, parse_id
from tenantry_cli.output import Column, columns, grouped, minute, pairs, shown
from tenantry_sdk import Consumption, Entitlement

_MOST: Final = 1_000_000_000
_feature_argument: Final = click.argument("feature", metavar="FEATURE", type=parse_id)


def _limit(entitlement: Entitlement) -> str:
    has_number = entitlement.granted and entitlement.type != "boolean"
    return grouped(entitlement.limit, "no limit" if has_number else "-")


_COLUMNS: Final = (
    *columns("feature", "type", "granted"),
    Column("LIMIT", _limit),
    Column("USED", "used", grouped),
    Column("REMAINING", "remaining", grouped),
    Column("RESETS (UTC)", "resets_at", minute, wide=True),
    Column("SOURCE", "source", loose=True, wide=True),
)


@click.command("list", cls=ApiCommand, json_help="One line of JSON a feature.")
def list_entitlements(api: ApiContext) -> None:
    """List the features of the plan catalog, and what your organization has of each.

    \b
      tenantry entitlements list
    """
    api.list(
        lambda **_: api.client.entitlements.list(),
        _COLUMNS,
        "The plan catalog has no features.",
    )


@click.command("show", cls=ApiCommand)
@_feature_argument
def show(api: ApiContext, *, feature: str) -> None:
    """Show what your organization has of a feature.

    \b
      tenantry entitlements show exports
    """
    entitlement = api.client.entitlements.get(feature)
    rows = [
        *pairs(entitlement, "feature", "type", "granted"),
        ("limit", _limit(entitlement)),
        *pairs(entitlement, "used", "remaining", "source", resets="resets_at"),
    ]
    api.record(entitlement, rows)


@click.command("consume", cls=ApiCommand, json_help="The use as one JSON document.")
@_feature_argument
@click.argument("amount", type=click.IntRange(1, _MOST), default=1)
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Count this key once, however often you repeat the command, and with whichever API key.",
)
def consume(
    api: ApiContext,
    *,
    feature: str,
    amount: int,
    idempotency_key: str | None,
) -> None:
    """Count the use of a metered feature, and print the remaining quota on stdout.

    AMOUNT is 1 by default. It is counted whole or not at all: exits with 1 if less is left.

    \b
      tenantry entitlements consume exports 3
    """
    used = api.client.entitlements.consume(feature, amount, idempotency_key=idempotency_key)
    left = "no limit" if used.remaining is None else str(used.remaining)
    api.done(used, f"Counted {amount:,} of {feature}{_until(used)}.", left)


def _until(used: Consumption) -> str:
    """Say how much is used, and until when."""
    if used.used is None:
        return ""
    return f": {used.used:,} used until {shown(used.resets_at)}"
