"""``tenantry events replay`` and ``body``: work on the ledger itself."""

from datetime import datetime

import click

from tenantry.billing.reads import raw_body
from tenantry.billing.replay import Selection
from tenantry.cli.on_database import on_database
from tenantry.cli.replay import run
from tenantry.cli.times import Moment


@click.command("replay")
@click.option("--tenant", "tenants", multiple=True, metavar="ORG", help="Only this tenant; may be given several times.")
@click.option("--since", type=Moment(), help="Only tenants with an event received since then, RFC 3339.")
@click.option("--dry-run", is_flag=True, help="Only say what differs: write nothing, exit with 3 if anything does.")
@click.option("--json", "as_json", is_flag=True, help="The differences as one JSON document.")
def replay(tenants: tuple[str, ...], since: datetime | None, *, dry_run: bool, as_json: bool) -> None:
    """Fold tenants' events again, show where a tenant is not what they lead to, and set it right.

    The present plan catalog counts: after a price was added to it, tenants come to their right plan. Events that were
    invalid, or left out by PROVIDER_ACCOUNTS or PROVIDER_LIVEMODE, are read again first, and take their place if they
    are valid now. Safe while the service runs; sends no mail. Exits with 0 when done, with 5 if a tenant does not
    exist, and with 3 if a dry run found differences.
    """
    run(Selection(tenants or None, since), dry_run=dry_run, as_json=as_json, in_full=False)


@click.command("body")
@click.argument("event_id", metavar="EVENT")
def body(event_id: str) -> None:
    """Print what the provider sent for an event, byte for byte.

    Bodies are kept for RAW_BODY_DAYS. Exits with 5 where there is no such event, or no body of it any more.
    """
    click.echo(on_database(lambda _, database: raw_body(database, event_id)), nl=False)
