"""When and from where a key was last used."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import psycopg
import pytest

from tenantry.auth.api_keys_store import KeyUse, record_uses
from tenantry.auth.authentication import Authenticator
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.database import Database
from tenantry.db.write_behind import WriteBehind
from tenantry.domain.api_keys import Pepper
from tests.support.app import PEPPER
from tests.support.billing import rows
from tests.support.guarded_events import written_by_test
from tests.support.patience import patient_database
from tests.support.principals import ONLY_FREE
from tests.support.senders import bearer
from tests.support.service import (
    KEYS,
    PROJECTS,
    VERIFY,
    WHOAMI,
    JsonObject,
    Service,
    running_service,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def used_at(key_id: str, moment: datetime, address: str = "192.0.2.7") -> KeyUse:
    return KeyUse(key_id, moment, address, key_id.encode(), "pepper")


def key_uses(database: Database) -> WriteBehind[KeyUse]:
    return WriteBehind(database, "uses of keys", record_uses)


async def test_last_use_is_shown_after_the_write(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:read")
    unused = (await organization.owner.get(key.path)).json()
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    use = key_uses(database)
    use.record(key.id, used_at(key.id, NOW))
    await use.write()
    await database.close()
    used = (await organization.owner.get(key.path)).json()
    assert (unused["lastUsedAt"], unused["lastUsedAddress"]) == (None, None)
    assert (used["lastUsedAt"], used["lastUsedAddress"]) == ("2026-03-01T12:00:00Z", "192.0.2.7")


async def test_shutdown_writes_the_last_uses(service: Service) -> None:
    organization = await service.organization()
    paths = (PROJECTS, WHOAMI, f"{VERIFY}projects:read")
    keys = {
        path: await service.key(organization.owner, organization.id, "projects:read")
        for path in paths
    }
    async with running_service(service.conninfo) as other:
        for path, key in keys.items():
            await other.caller(key.caller.credential).get(path)
    for path, key in keys.items():
        shown = (await organization.owner.get(key.path)).json()
        assert shown["lastUsedAt"] is not None, path
        assert shown["lastUsedAddress"] == "127.0.0.1", path


async def test_rejected_key_has_no_last_use(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:read")
    await organization.owner.delete(key.path)
    async with running_service(service.conninfo) as other:
        assert (await other.caller(key.caller.credential).get(PROJECTS)).status_code == 401
    assert (await organization.owner.get(key.path)).json()["lastUsedAt"] is None


async def test_older_use_does_not_replace_a_newer_one(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:read")
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    use = key_uses(database)
    for moment in (NOW, NOW.replace(hour=11)):
        use.record(key.id, used_at(key.id, moment))
        await use.write()
    await database.close()
    shown = (await organization.owner.get(key.path)).json()
    assert shown["lastUsedAt"] == "2026-03-01T12:00:00Z"


@asynccontextmanager
async def recording(service: Service) -> AsyncIterator[Callable[[str], Awaitable[JsonObject]]]:
    """Authenticate a new key from an address, write its use, and return its record, which another
    key reads: the service itself never sees this one.
    """
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "a:b")
    database = patient_database(service.conninfo, pool_size=1)
    use = key_uses(database)
    authenticator = Authenticator(
        keys=database.lane(),
        users=database.lane(),
        peppers=[Pepper(PEPPER.encode())],
        tokens=None,
        catalog=ONLY_FREE,
        clock=service.clock,
        key_used=use.record,
    )
    await database.open()

    async def authenticate(address: str) -> JsonObject:
        await authenticator.authenticate(bearer(key.caller.credential, address))
        await use.write()
        shown: JsonObject = (await organization.owner.get(key.path)).json()
        return shown

    yield authenticate
    await authenticator.close()
    await database.close()


async def test_last_use_is_written_once_a_minute(service: Service) -> None:
    async with recording(service) as authenticate:
        first = await authenticate("192.0.2.1")
        service.clock.advance(seconds=59)
        within = await authenticate("192.0.2.1")
        service.clock.advance(seconds=2)
        after = await authenticate("192.0.2.1")
    assert within["lastUsedAt"] == first["lastUsedAt"]
    assert after["lastUsedAt"] > first["lastUsedAt"]


async def test_use_from_another_address_is_written_at_once(service: Service) -> None:
    async with recording(service) as authenticate:
        shown = [await authenticate(address) for address in ("192.0.2.1", "192.0.2.2")]
    assert [key["lastUsedAddress"] for key in shown] == ["192.0.2.1", "192.0.2.2"]
    assert shown[0]["lastUsedAt"] < shown[1]["lastUsedAt"]


async def test_successor_shows_the_last_use_of_the_rotated_key(service: Service) -> None:
    organization = await service.organization()
    old = await service.key(organization.owner, organization.id, "projects:read")
    new = (await organization.owner.post(f"{old.path}/rotate", {"overlapSeconds": 3600})).json()
    async with running_service(service.conninfo) as other:
        await other.caller(old.caller.credential).get(PROJECTS)
    old_shown = (await organization.owner.get(old.path)).json()
    new_shown = (await organization.owner.get(f"{KEYS}/{new['id']}")).json()
    assert old_shown["lastUsedAt"] is not None
    assert new_shown["rotatedFromLastUsedAt"] == old_shown["lastUsedAt"]
    assert new_shown["lastUsedAt"] is None


async def test_uses_of_many_keys_are_written_in_batches(conninfo: str) -> None:
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    async with database.change(of_tenant("t")) as connection:
        await written_by_test(connection)
        await connection.execute(
            "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES ('t', 'T', 'o', 'o@t')"
        )
        await connection.execute(
            "INSERT INTO api_keys "
            "(id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, created_by) "
            "SELECT 'key_' || n, 't', convert_to('key_' || n, 'UTF8'), '', '{}', 'SCOPED', 'live', '', '', now(), '-' "
            "FROM generate_series(1, 2500) AS n"
        )
    use = key_uses(database)
    for number in range(1, 2501):
        use.record(f"key_{number}", used_at(f"key_{number}", NOW))
    await use.write()
    async with database.transaction(ACROSS_TENANTS) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM api_keys WHERE last_used_at = %s", (NOW,)
        )
        assert await cursor.fetchall() == [(2500,)]
    await database.close()


async def test_failed_write_is_repeated(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        organization = await service.organization()
        key = await service.key(organization.owner, organization.id, "projects:read")
        database = patient_database(conninfo, pool_size=1)
        await database.open()
        use = key_uses(database)
        use.record(key.id, used_at(key.id, NOW))
        await rows(conninfo, "REVOKE ALL ON api_keys FROM tenantry_batch")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await use.write()
        await rows(conninfo, "GRANT ALL ON api_keys TO tenantry_batch")
        await use.write()
        await database.close()
        shown = (await organization.owner.get(key.path)).json()
    assert shown["lastUsedAt"] == "2026-03-01T12:00:00Z"
