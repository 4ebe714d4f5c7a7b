"""Running one action on the database, as commands do that need no server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tenantry.cli.environment import command_values, database, fail_on_settings, migrated
from tenantry.cli.exit_codes import FAILED, NOT_AUTHENTICATED, NOT_FOUND, OUT_OF_REACH, fail
from tenantry.db.database import Database
from tenantry.domain.errors import (
    DatabaseUnavailableError,
    DomainError,
    NotFoundError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from tenantry.settings import Settings, SettingsError, load_for_admin

Result = TypeVar("Result")
Act = Callable[[Settings, Database], Awaitable[Result]]

_CODES: Final[dict[type[DomainError], int]] = {
    NotFoundError: NOT_FOUND,
    ProviderUnavailableError: OUT_OF_REACH,
    DatabaseUnavailableError: OUT_OF_REACH,
}


def exit_code(refusal: DomainError) -> int:
    """The exit code that tells of a refusal."""
    if isinstance(refusal, ProviderRefusedError) and refusal.of_key:
        return NOT_AUTHENTICATED
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


async def _connected(conninfo: str, settings: Settings, act: Act[Result], pool_size: int) -> Result:
    connected = Database(conninfo, pool_size)
    await connected.open()
    try:
        return await act(settings, connected)
    finally:
        await connected.close()
