"""``tenantry tenants explain`` and ``rebuild``: why a billing state is what it is, and setting it right."""

from typing import Final

import click
import msgspec

from tenantry.billing.explain import ExplainService, Explanation
from tenantry.billing.replay import Selection
from tenantry.cli.on_database import on_database
from tenantry.cli.replay import run
from tenantry.cli.timeline import show
from tenantry.db.database import Database
from tenantry.settings import AdminSettings

MOST_ENTRIES: Final = 100


@click.command("explain")
@click.argument("org_id", metavar="ORG")
@click.option("--json", "as_json", is_flag=True, help="Entries and state as one JSON document.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=MOST_ENTRIES, show_default=True, help="Only the newest so many."
)
def explain(org_id: str, *, as_json: bool, limit: int) -> None:
    """Show why a tenant's billing state is what it is: each event, oldest first, what it changed and why."""

    async def act(settings: AdminSettings, database: Database) -> Explanation:
        return await ExplainService(database, settings.billing).explain(org_id, limit)

    explanation = on_database(act)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode())
    else:
        show(explanation)


@click.command("rebuild")
@click.argument("org_ids", metavar="[ORG]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only say what differs: write nothing, exit with 3 if anything does.")
@click.option("--json", "as_json", is_flag=True, help="What was found and done as one JSON document.")
def rebuild(org_ids: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Make tenants' billing state anew from all their events, and show each field before and after.

    Without a name all tenants are rebuilt, and only what differs is shown.

    The same as `tenantry events replay`, in more detail: safe while the service runs, and no mail is sent. Exits with
    0 when done, with 5 if a tenant does not exist, and with 3 if a dry run found differences.
    """
    run(Selection(org_ids or None), dry_run=dry_run, as_json=as_json, in_full=bool(org_ids))
