"""``tenantry migrate``: the schema."""

import click
import psycopg

from tenantry.cli.environment import command_values, database, migrated
from tenantry.cli.exit_codes import fail


@click.command()
@click.option("--grant-to", "login", metavar="LOGIN", help="Then let this database role run the service.")
def migrate(login: str | None) -> None:
    """Bring the schema of DATABASE_URL up to date.

    With --grant-to the service can run as a role that owns nothing. It works in roles that may do what is needed and no
    more, and of which the one for requests meets one tenant's rows at a time. They are made if they are missing; where
    DATABASE_URL's role may not do that, the statements for somebody who may are printed.
    """
    values, _ = command_values()
    with database(values) as conninfo:
        before, after = migrated(conninfo)
        if login is not None:
            _grant(conninfo, login)
    click.echo(f"schema: {after}, up to date" if before == after else f"schema: {before or 'none'} -> {after}")
    if login is not None:
        click.echo(f"role: {login} may run the service")


def _grant(conninfo: str, login: str) -> None:
    from tenantry.db.migrate import grant  # noqa: PLC0415  # slow to import
    from tenantry.db.roles import RolesMissingError  # noqa: PLC0415

    try:
        grant(conninfo, login)
    except RolesMissingError as missing:
        click.echo("\n".join(missing.statements))
        fail("--grant-to: DATABASE_URL's role may not make or give roles. Have these statements run, then try again.")
    except psycopg.errors.UndefinedObject:
        fail(f"--grant-to: there is no role {login}. Make it first: it is the one that the service is to log in as.")
    except psycopg.Error as error:
        fail(f"--grant-to: {str(error).strip()}")
