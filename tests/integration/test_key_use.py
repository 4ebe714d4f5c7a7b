"""When a key was last used."""

from datetime import UTC, datetime

from tenantry.db.database import Database
from tenantry.services.key_use import KeyUse
from tests.support.service import running_service

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def test_use_of_a_key_is_shown_once_it_is_written(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        organization = await service.organization()
        key = await service.key(organization.owner, organization.id, "projects:read")
        unused = (await organization.owner.get(key.path)).json()
        database = Database(conninfo, pool_size=1)
        await database.open()
        use = KeyUse(database, lambda: NOW)
        use.record(key.id)
        await use.write()
        await database.close()
        used = (await organization.owner.get(key.path)).json()
    assert unused["lastUsedAt"] is None
    assert used["lastUsedAt"] == "2026-03-01T12:00:00Z"


async def test_uses_of_the_service_are_written_when_it_stops(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        organization = await service.organization()
        key = await service.key(organization.owner, organization.id, "projects:read")
        await key.caller.get("/api/v1/projects")
    async with running_service(conninfo) as service:
        shown = (await service.caller(organization.owner.credential).get(key.path)).json()
    assert shown["lastUsedAt"] is not None


async def test_refused_key_does_not_count_as_used(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        organization = await service.organization()
        key = await service.key(organization.owner, organization.id, "projects:read")
        await organization.owner.delete(key.path)
        assert (await key.caller.get("/api/v1/projects")).status_code == 401
    async with running_service(conninfo) as service:
        shown = (await service.caller(organization.owner.credential).get(key.path)).json()
    assert shown["lastUsedAt"] is None


async def test_older_use_does_not_replace_a_newer_one(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        organization = await service.organization()
        key = await service.key(organization.owner, organization.id, "projects:read")
        database = Database(conninfo, pool_size=1)
        await database.open()
        moments = iter((NOW, NOW.replace(hour=11)))
        use = KeyUse(database, lambda: next(moments))
        for _ in range(2):
            use.record(key.id)
            await use.write()
        await database.close()
        shown = (await organization.owner.get(key.path)).json()
    assert shown["lastUsedAt"] == "2026-03-01T12:00:00Z"
