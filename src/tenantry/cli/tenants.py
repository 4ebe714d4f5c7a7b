"""``tenantry tenants`` and ``events`` through the API, and ``tenantry plans``."""

from collections.abc import Iterator
from itertools import chain

import click

from tenantry.cli.api_command import ApiCommand, ApiContext, id_argument
from tenantry.cli.options import limit_option
from tenantry.cli.output import Column, ago, changes, columns, minute, pairs, shown
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
    """Show a tenant, by default your own. `tenants explain` shows why it is so.

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
