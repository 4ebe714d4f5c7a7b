"""``tenantry migrate``: the schema."""

import click
import psycopg

from tenantry.cli.environment import command_values, database, migrated
from tenantry.cli.exit_codes import fail


@click.command()
@click.option("--grant-to", "role", metavar="ROLE", help="Then let this database role do what the service does.")
def migrate(role: str | None) -> None:
    """Bring the schema of DATABASE_URL (or of the embedded database) up to date.

    With --grant-to the service can run as a role that owns nothing: it cannot alter the schema, nor what is in the
    audit trail. Repeat it with every migration.
    """
    values, _ = command_values()
    with database(values) as conninfo:
        before, after = migrated(conninfo)
        if role is not None:
            _grant(conninfo, role)
    click.echo(f"schema: {after}, up to date" if before == after else f"schema: {before or 'none'} -> {after}")
    if role is not None:
        click.echo(f"role: {role} may run the service")


def _grant(conninfo: str, role: str) -> None:
    from tenantry.db.migrate import grant  # noqa: PLC0415  # slow to import

    try:
        grant(conninfo, role)
    except psycopg.Error as error:
        fail(f"--grant-to: {str(error).strip()}")
