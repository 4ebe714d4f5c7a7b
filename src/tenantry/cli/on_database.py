"""Running one action on the database, as commands do that need no server."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

import click

from tenantry.cli.environment import FAILED, command_values, database, fail, fail_on_settings, migrated
from tenantry.db.database import Database
from tenantry.domain.errors import (
    DatabaseUnavailableError,
    DomainError,
    NotFoundError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from tenantry.settings import AdminSettings, SettingsError, load_for_admin

Result = TypeVar("Result")
Act = Callable[[AdminSettings, Database], Awaitable[Result]]

NOT_AUTHENTICATED: Final = 4
NOT_FOUND: Final = 5
OUT_OF_REACH: Final = 6
_CODES: Final[dict[type[DomainError], int]] = {
    ProviderRefusedError: NOT_AUTHENTICATED,
    NotFoundError: NOT_FOUND,
    ProviderUnavailableError: OUT_OF_REACH,
    DatabaseUnavailableError: OUT_OF_REACH,
}


def exit_code(refusal: DomainError) -> int:
    """The exit code that tells of a refusal."""
    return _CODES.get(type(refusal), FAILED)


def on_database(act: Act[Result], *, pool_size: int = 1) -> Result:
    """What an action on the database comes to; settings, connection and refusals are looked after here."""
    values, _ = command_values()
    try:
        settings = load_for_admin(values, needs_pepper=False)
    except SettingsError as error:
        fail_on_settings(error)
    with database(values) as conninfo:
        migrated(conninfo, out_of_reach=OUT_OF_REACH)
        try:
            return asyncio.run(_connected(conninfo, settings, act, pool_size))
        except DomainError as error:
            fail(error.detail, exit_code(error))


async def _connected(conninfo: str, settings: AdminSettings, act: Act[Result], pool_size: int) -> Result:
    connected = Database(conninfo, pool_size)
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
