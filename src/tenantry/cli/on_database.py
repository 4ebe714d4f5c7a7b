"""Running one action on the database, as commands do that need no server."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

import click

from tenantry.cli.environment import command_values, database, fail, fail_on_settings, migrated
from tenantry.db.database import Database
from tenantry.domain.errors import DomainError, NotFoundError
from tenantry.settings import AdminSettings, SettingsError, load_for_admin

Result = TypeVar("Result")
Act = Callable[[AdminSettings, Database], Awaitable[Result]]

NOT_FOUND: Final = 5


def on_database(act: Act[Result]) -> Result:
    """What an action on the database comes to; settings, connection and refusals are looked after here."""
    values, _ = command_values()
    try:
        settings = load_for_admin(values, needs_pepper=False)
    except SettingsError as error:
        fail_on_settings(error)
    with database(values) as conninfo:
        migrated(conninfo)
        try:
            return asyncio.run(_connected(conninfo, settings, act))
        except NotFoundError as error:
            fail(error.detail, NOT_FOUND)
        except DomainError as error:
            fail(error.detail)


async def _connected(conninfo: str, settings: AdminSettings, act: Act[Result]) -> Result:
    connected = Database(conninfo, pool_size=1)
    await connected.open()
    try:
        return await act(settings, connected)
    finally:
        await connected.close()


class Moment(click.ParamType[datetime]):
    """A time such as ``2027-01-31T00:00:00Z``; without a zone it is in UTC."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment that a text names."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail("is not a time such as 2027-01-31T00:00:00Z", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
