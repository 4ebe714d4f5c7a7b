"""``tenantry migrate``: the schema."""

import click

from tenantry.cli.environment import command_values, database, migrated


@click.command()
def migrate() -> None:
    """Bring the schema of DATABASE_URL (or of the embedded database) up to date."""
    values, _ = command_values()
    with database(values) as conninfo:
        before, after = migrated(conninfo)
    click.echo(f"schema: {after}, up to date" if before == after else f"schema: {before or 'none'} -> {after}")
