"""``tenantry plans``."""

import click

from tenantry.cli.api.client import Api
from tenantry.cli.api.command import ApiCommand
from tenantry.cli.api.tables import Column
from tenantry_sdk import Plan


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
