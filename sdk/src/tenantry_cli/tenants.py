"""``tenantry tenants`` and ``events`` through the API, and ``tenantry plans``."""

from datetime import datetime
from functools import partial
from typing import Final

import click
from msgspec import UNSET

from tenantry_cli.api_command import ApiCommand, ApiContext, Rows, id_argument, show_command
from tenantry_cli.listing import list_command
from tenantry_cli.options import reason_option, yes_option
from tenantry_cli.output import (
    Column,
    ago,
    changes,
    columns,
    confirm,
    grouped,
    minute,
    pairs,
    shown,
)
from tenantry_cli.status import plan_rows
from tenantry_cli.times import utc_now
from tenantry_sdk import BillingEvent, Plan


def _age(moment: datetime) -> str:
    return ago(moment, utc_now()).removesuffix(" ago")


_limit: Final = partial(grouped, missing="no limit")


def _prices(plan: Plan) -> str:
    from tenantry_cli._plan_words import price_words  # noqa: PLC0415  # not every command needs it

    return ", ".join(price_words(price) for price in plan.prices or ())


_TENANT_COLUMNS = columns(
    "id",
    "name",
    "plan",
    status="subscription_status",
    period_ends="current_period_end",
    loose="name",
)
_PLAN_COLUMNS = (
    *columns("id", "name", loose="name"),
    Column("PROJECTS", "limits.projects", _limit),
    Column("KEYS", "limits.api_keys", _limit),
    Column("REQUESTS A MINUTE", "limits.requests_per_minute", _limit),
    Column("A KEY", "limits.requests_per_minute_per_key", _limit),
    Column("PRICES", _prices, loose=True, optional=True),
)
_EVENT_COLUMNS = (
    Column("AGE", "created", _age),
    *columns("outcome", "type", "id", loose="type"),
    Column("CREATED (UTC)", "created", minute, wide=True),
    Column("REASON", "reason", loose=True, wide=True),
)


@list_command("tenants", "a tenant", _TENANT_COLUMNS)
def list_tenants() -> str:
    """List the organizations that you belong to, with plan and subscription.

    \b
      tenantry tenants list --json
    """
    return "You belong to no organization."


@click.command("show", cls=ApiCommand)
@id_argument("org_id", "[ORG]", "tenants", required=False)
def show(api: ApiContext, *, org_id: str | None) -> None:
    """Show an organization, by default your own.

    \b
      tenantry tenants show acme
    """
    tenant = api.client.tenants.get(org_id or api.org_id)
    state = pairs(
        tenant,
        period_ends="current_period_end",
        cancel_at_period_end="cancel_at_period_end",
        cancels_at="cancel_at",
        ends="ends_at",
        seats="seats",
        time_zone="time_zone",
        customer="stripe_customer_id",
        owner="owner_id",
        created="created_at",
        updated="updated_at",
    )
    plan = plan_rows(api.client, tenant)
    api.record(tenant, [*pairs(tenant, "id", "name"), *plan, *state])


@click.command("create", cls=ApiCommand, json_help="The organization as one JSON document.")
@click.option("--name", required=True, help="The organization's name.")
@click.option(
    "--owner-email",
    metavar="MAIL",
    help="The address for billing mail. Default: your verified one.",
)
def create(api: ApiContext, *, name: str, owner_email: str | None) -> None:
    """Create an organization with you as its owner, and print its id on stdout.

    \b
      tenantry tenants create --name Acme
    """
    tenant = api.client.tenants.create(name=name, owner_email=owner_email)
    api.done(tenant, f'Created "{tenant.name}".', tenant.id)


@click.command("update", cls=ApiCommand, json_help="The organization as one JSON document.")
@id_argument("org_id", "[ORG]", "tenants", required=False)
@click.option("--name", help="The new name.")
@click.option(
    "--owner-email",
    metavar="MAIL",
    help="The address for billing mail. The same unverified address again gets another confirmation.",
)
@click.option(
    "--time-zone",
    metavar="ZONE",
    help="The zone in which the dashboard shows times, such as Europe/Berlin.",
)
@click.option("--no-time-zone", is_flag=True, help="Show times in the zone of each reader.")
def update(
    api: ApiContext,
    *,
    org_id: str | None,
    name: str | None,
    owner_email: str | None,
    time_zone: str | None,
    no_time_zone: bool,
) -> None:
    """Change an organization, by default your own: its name, billing address or time zone.

    \b
      tenantry tenants update --time-zone Europe/Berlin
    """
    if time_zone is not None and no_time_zone:
        raise click.UsageError("Pass --time-zone or --no-time-zone, not both.")
    given = {"name": name, "owner_email": owner_email, "time_zone": time_zone}
    changes: dict[str, str | None] = {
        field: text for field, text in given.items() if text is not None
    }
    if no_time_zone:
        changes["time_zone"] = None
    if not changes:
        raise click.UsageError("Name a change: --name, --owner-email or --time-zone.")
    tenant = api.client.tenants.update(org_id or api.org_id, **changes)  # type: ignore[arg-type]  # only a zone may be None
    message = f'Changed "{tenant.name}".'
    if owner_email is not None and not api.client.tenants.owner_address(tenant.id).verified:
        message += f"\nA mail to {owner_email} has a link to confirm the address."
    api.done(tenant, message)


@click.command("transfer", cls=ApiCommand, json_help="The organization as one JSON document.")
@id_argument("org_id", "ORG", "tenants")
@click.option("--to", "user_id", required=True, metavar="USER", help="An active member's user id.")
@click.option(
    "--owner-email",
    required=True,
    metavar="MAIL",
    help="Their address, for mail about billing and security.",
)
@reason_option
@yes_option
def transfer(
    api: ApiContext,
    *,
    org_id: str,
    user_id: str,
    owner_email: str,
    reason: str | None,
    yes: bool,
) -> None:
    """Make another member the owner of an organization; the owner before becomes an admin.

    \b
      tenantry tenants transfer acme --to user_0123 --owner-email mia@acme.example
    """
    if not yes:
        confirm(f"Transfer {org_id} to {user_id}? Only an owner can transfer it again.")
    tenant = api.client.tenants.transfer(
        org_id, user_id=user_id, owner_email=owner_email, reason=UNSET if reason is None else reason
    )
    api.done(tenant, f'"{tenant.name}" belongs to {tenant.owner_id} now.')


@click.command("delete", cls=ApiCommand)
@id_argument("org_id", "ORG", "tenants")
@reason_option
@yes_option
def delete(api: ApiContext, *, org_id: str, reason: str | None, yes: bool) -> None:
    """Delete an organization that you own.

    Its members lose access and its API keys stop working immediately; its data is deleted after 30
    days. Cancel a subscription first.

    \b
      tenantry tenants delete acme
    """
    tenants = api.client.tenants
    why = UNSET if reason is None else reason

    def question(org_id: str) -> str:
        return (
            f"Delete {tenants.get(org_id).name} ({org_id})? Its members and keys lose access now."
        )

    api.end_each(
        [org_id],
        question,
        lambda org_id: tenants.end(org_id, name=tenants.get(org_id).name, reason=why),
        "Deleted",
        yes=yes,
        status="ended",
    )


@click.command("plans", cls=ApiCommand, json_help="One line of JSON a plan.")
def plans(api: ApiContext) -> None:
    """List the plans, their limits and, where the service knows them, their prices.

    \b
      tenantry plans --json
    """
    api.list(lambda **_: api.client.plans.list(), _PLAN_COLUMNS, "There are no plans.")


@list_command("billing.events", "an event", _EVENT_COLUMNS)
def list_events() -> str:
    """List your organization's provider events and their effect, the newest first.

    \b
      tenantry events list --limit 5
    """
    return "There are no events."


@show_command("billing.events", "EVENT")
def show_event(_: ApiContext, event: BillingEvent) -> Rows:
    """Show what an event changed in your organization, and why.

    \b
      tenantry events show evt_1SQk7xLm3Rk2pXw7
    """
    yield from pairs(
        event,
        "id",
        "type",
        "created",
        received="received_at",
    )
    yield "live mode", shown(event.livemode)
    yield from pairs(event, "outcome", "reason")
    if event.anomalies:
        yield "unexpected", ", ".join(event.anomalies)
    for field, values in changes(event.before, event.after):
        yield field.replace("_", " "), values
