"""``tenantry tenants`` and ``events`` through the API, and ``tenantry plans``."""

from collections.abc import Iterator
from itertools import chain

import click

from tenantry.cli.api_command import ApiCommand, ApiContext, id_argument
from tenantry.cli.options import limit_option, yes_option
from tenantry.cli.output import Column, ago, changes, columns, confirm, minute, pairs, shown
from tenantry.cli.status import plan_rows
from tenantry_sdk import BillingEvent, Plan


def _prices(plan: Plan) -> str:
    from tenantry.domain.prices import price_words  # noqa: PLC0415  # not every command needs it

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
    Column("PROJECTS", lambda plan: _limit(plan.limits.projects)),
    Column("KEYS", lambda plan: _limit(plan.limits.api_keys)),
    Column("REQUESTS A MINUTE", lambda plan: _limit(plan.limits.requests_per_minute)),
    Column("A KEY", lambda plan: _limit(plan.limits.requests_per_minute_per_key)),
    Column("PRICES", _prices, loose=True, optional=True),
)


@click.command("list", cls=ApiCommand, json_help="One line of JSON a tenant.")
@limit_option
def list_tenants(api: ApiContext, *, limit: int | None) -> None:
    """List the tenants that you belong to, with plan and subscription.

    \b
      tenantry tenants list --json
    """
    api.list(
        api.client.tenants.list,
        _TENANT_COLUMNS,
        "You belong to no tenant.",
        limit=limit,
    )


@click.command("show", cls=ApiCommand)
@id_argument("org_id", "[ORG]", "tenants", required=False)
def show(api: ApiContext, *, org_id: str | None) -> None:
    """Show a tenant, by default your own. `tenants explain` shows why it has its plan.

    \b
      tenantry tenants show acme
    """
    tenant = api.client.tenants.get(org_id or api.org_id)
    state = {
        "period_ends": "current_period_end",
        "cancel_at_period_end": "cancel_at_period_end",
        "cancels_at": "cancel_at",
        "ends": "ends_at",
        "seats": "seats",
    }
    names = {
        "time_zone": "time_zone",
        "customer": "stripe_customer_id",
        "owner": "owner_id",
        "created": "created_at",
        "updated": "updated_at",
    }
    plan = plan_rows(api.client, tenant)
    api.record(
        tenant,
        chain(
            pairs(tenant, "id", "name"),
            plan,
            pairs(tenant, **state, **names),
        ),
    )


@click.command("create", cls=ApiCommand, json_help="The tenant as one JSON document.")
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


@click.command("update", cls=ApiCommand, json_help="The tenant as one JSON document.")
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


@click.command("transfer", cls=ApiCommand, json_help="The tenant as one JSON document.")
@id_argument("org_id", "ORG", "tenants")
@click.option("--to", "user_id", required=True, metavar="USER", help="An active member's user id.")
@click.option(
    "--owner-email",
    required=True,
    metavar="MAIL",
    help="Their address, for mail about billing and security.",
)
@yes_option
def transfer(
    api: ApiContext,
    *,
    org_id: str,
    user_id: str,
    owner_email: str,
    yes: bool,
) -> None:
    """Make another member the owner of an organization; the owner before becomes an admin.

    \b
      tenantry tenants transfer acme --to user_0123 --owner-email mia@acme.example
    """
    if not yes:
        confirm(f"Transfer {org_id} to {user_id}? Only an owner can transfer it again.")
    tenant = api.client.tenants.transfer(org_id, user_id=user_id, owner_email=owner_email)
    api.done(tenant, f'"{tenant.name}" belongs to {tenant.owner_id} now.')


@click.command("delete", cls=ApiCommand)
@id_argument("org_id", "ORG", "tenants")
@yes_option
def delete(api: ApiContext, *, org_id: str, yes: bool) -> None:
    """Delete an organization that you own.

    Its members lose access and its API keys stop working immediately; its data is deleted after 30
    days. Cancel a subscription first.

    \b
      tenantry tenants delete acme
    """
    tenants = api.client.tenants

    def question(org_id: str) -> str:
        return (
            f"Delete {tenants.get(org_id).name} ({org_id})? Its members and keys lose access now."
        )

    api.end_each(
        [org_id],
        question,
        lambda org_id: tenants.end(org_id, name=tenants.get(org_id).name),
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


def _limit(number: int | None) -> str:
    return "no limit" if number is None else f"{number:,}"


@click.command("list", cls=ApiCommand, json_help="One line of JSON an event.")
@limit_option
def list_events(api: ApiContext, *, limit: int | None) -> None:
    """List your tenant's provider events and their effect, the newest first.

    \b
      tenantry events list --limit 5
    """
    event_columns = (
        Column("AGE", lambda event: ago(event.created, api.now).removesuffix(" ago")),
        *columns("outcome", "type", "id", loose="type"),
        Column("CREATED (UTC)", lambda event: minute(event.created), wide=True),
        Column(
            "REASON",
            lambda event: event.reason,
            loose=True,
            wide=True,
        ),
    )
    api.list(
        api.client.billing.events.list,
        event_columns,
        "There are no events.",
        limit=limit,
    )


@click.command("show", cls=ApiCommand)
@id_argument("event_id", "EVENT", "billing.events")
def show_event(api: ApiContext, *, event_id: str) -> None:
    """Show what an event changed in your tenant, and why.

    \b
      tenantry events show evt_1SQk7xLm3Rk2pXw7
    """
    event = api.client.billing.events.get(event_id)
    api.record(event, _event_rows(event))


def _event_rows(event: BillingEvent) -> Iterator[tuple[str, str]]:
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
    for field, change in changes(event.before, event.after):
        yield field.replace("_", " "), change
