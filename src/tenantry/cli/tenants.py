"""``tenantry tenants list`` and ``show``, and ``tenantry plans``."""

from collections.abc import Iterator

import click

from tenantry.cli.api_client import PAGE, Api, Column
from tenantry.cli.api_command import ApiCommand, Id, completed, limit_option
from tenantry.cli.text import day, shown
from tenantry_sdk import Plan, Tenant

_COLUMNS = (
    Column[Tenant]("ID", lambda tenant: tenant.id),
    Column[Tenant]("NAME", lambda tenant: tenant.name, loose=True),
    Column[Tenant]("PLAN", lambda tenant: tenant.plan),
    Column[Tenant]("STATUS", lambda tenant: tenant.subscription_status),
    Column[Tenant]("PERIOD ENDS", lambda tenant: day(tenant.current_period_end)),
)

_ENDED = ("none", "canceled", "incomplete_expired")
"""The statuses without a subscription that lives."""


@click.command("list", cls=ApiCommand, json_help="One line of JSON a tenant.")
@limit_option
def list_tenants(api: Api, *, limit: int | None) -> None:
    """List the tenants that you belong to, with plan and subscription."""
    pager = api.client.tenants.list(limit=min(limit or PAGE, PAGE))
    api.list(pager, limit, _COLUMNS, "You belong to no tenant.")


@click.command("show", cls=ApiCommand)
@click.argument("org_id", metavar="[ORG]", required=False, type=Id(), shell_complete=completed("tenants"))
def show(api: Api, *, org_id: str | None) -> None:
    """Show a tenant, your own unless another is named. `tenants explain` tells why it is so."""
    tenant = api.client.tenants.get(org_id or api.org_id)
    api.record(tenant, _rows(tenant))


def _rows(tenant: Tenant) -> Iterator[tuple[str, str]]:
    yield "id", tenant.id
    yield "name", tenant.name
    yield "plan", tenant.plan
    yield "subscription", tenant.subscription_status
    lives = tenant.subscription_status not in _ENDED
    ends = " (cancelled, ends then)" if tenant.cancel_at_period_end and lives else ""
    yield "period ends", f"{shown(tenant.current_period_end)}{ends}"
    yield "customer", shown(tenant.stripe_customer_id)
    yield "owner", shown(tenant.owner_id)
    yield "created", shown(tenant.created_at)
    yield "updated", shown(tenant.updated_at)


@click.command("plans", cls=ApiCommand, json_help="One line of JSON a plan.")
def plans(api: Api) -> None:
    """List the plans, and what each allows."""
    columns = (
        Column[Plan]("ID", lambda plan: plan.id),
        Column[Plan]("NAME", lambda plan: plan.name, loose=True),
        Column[Plan]("PROJECTS", lambda plan: _limit(plan.limits.projects)),
        Column[Plan]("KEYS", lambda plan: _limit(plan.limits.api_keys)),
        Column[Plan]("REQUESTS A MINUTE", lambda plan: _limit(plan.limits.requests_per_minute)),
        Column[Plan]("A KEY", lambda plan: _limit(plan.limits.requests_per_minute_per_key)),
    )
    api.list(api.client.plans.list(), None, columns, "There are no plans.")


def _limit(number: int | None) -> str:
    return "no limit" if number is None else f"{number:,}"
