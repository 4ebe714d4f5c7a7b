"""Two successive releases on one database, as during a rolling restart."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import events
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import SECRETS, run, running
from tests.support.deployment import Deployment, deployed
from tests.support.migrations import revisions
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url
from tests.support.releases import ARCHIVE, Release, of_this_tree, successive_releases, unpacked
from tests.support.service import KEYS, PROJECTS, TENANTS, WHOAMI
from tests.support.signing import deliver

FIRST_REVISION = "0001"


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Release]:
    return successive_releases(tmp_path_factory.mktemp("releases"))


@pytest.fixture
def earlier(releases: tuple[Release, Release]) -> Release:
    return releases[0]


@pytest.fixture
def later(releases: tuple[Release, Release]) -> Release:
    return releases[1]


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[str]:
    """The connection string of a database that no release has migrated."""
    with postgres.database(migrated=False) as conninfo:
        yield conninfo


async def migrated(conninfo: str, folder: Path, release: Release, *options: str) -> str:
    """Migrate with this release; return what the command prints."""
    values = {"DATABASE_URL": as_url(conninfo), "PYTHONPATH": str(release.path)}
    done = await run("migrate", *options, folder=folder, **values)
    assert done.code == 0, done.err
    return done.out


@asynccontextmanager
async def service(address: str, folder: Path, release: Release) -> AsyncIterator[Deployment]:
    """A service of this release."""
    values = {
        "WORKERS": "1",
        "OPERATOR_TOKEN": OPERATOR_TOKEN,
        "PYTHONPATH": str(release.path),
    }
    async with deployed(address, folder, credential=OPERATOR_TOKEN, **values) as deployment:
        yield deployment


class People:
    """A tenant that the services in ``clients`` deal with in turn, each time another one than the
    time before.
    """

    def __init__(self, clients: list[httpx2.AsyncClient], org: str) -> None:
        self._clients = clients
        self._org = org
        self._turn = 0

    async def call(
        self, method: str, path: str, credential: str = OPERATOR_TOKEN, json: object = None
    ) -> httpx2.Response:
        """The answer of the service whose turn it is."""
        headers = {"Authorization": f"Bearer {credential}"}
        return await self._next().request(method, path, headers=headers, json=json)

    async def live(self, owner: str) -> None:
        """Do what tenants do: projects, events, keys, the trail; whatever one service writes
        another one reads.
        """
        key = await self.call(
            "POST", KEYS, owner, {"orgId": self._org, "name": "k", "scopes": ["projects:*"]}
        )
        assert key.status_code == 201, key.text
        secret = key.json()["secret"]
        made = await self.call("POST", PROJECTS, secret, {"name": "one"})
        assert made.status_code == 201, made.text
        for _ in range(2):
            assert [
                project["name"]
                for project in (await self.call("GET", PROJECTS, secret)).json()["data"]
            ] == ["one"]
        for price, plan in (("price_pro", "pro"), ("price_free", "free")):
            event = events.updated(
                org=self._org, customer=f"cus_{self._org}", price=price, created=int(time.time())
            )
            answer = await deliver(
                self._next(), event, secret=SECRETS["PROVIDER_WEBHOOK_SECRET"], at=int(time.time())
            )
            assert (answer.status_code, answer.text) == (200, "OK")
            for _ in range(2):
                assert (await self.call("GET", f"{TENANTS}/{self._org}", owner)).json()[
                    "plan"
                ] == plan
        changed = await self.call("PATCH", made.headers["location"], secret, {"name": "two"})
        assert changed.status_code == 200, changed.text
        assert (await self.call("DELETE", f"{KEYS}/{key.json()['id']}", owner)).status_code == 204
        for _ in range(2):
            assert (await self.call("GET", WHOAMI, secret)).json()["code"] == "api_key_revoked"
        exported = await self.call("GET", f"{TENANTS}/{self._org}/export")
        assert exported.status_code == 200, exported.text
        assert len(exported.json()["billingEvents"]) == 2

    def _next(self) -> httpx2.AsyncClient:
        self._turn += 1
        return self._clients[self._turn % len(self._clients)]


async def settled(
    address: str,
    folder: Path,
    *deployments: Deployment,
    release: Release,
    org: str = "acme",
) -> None:
    """Let a tenant live with these services; a command of ``release`` makes its first key."""
    clients = [deployment.client() for deployment in deployments]
    people = People(clients, org)
    wish = {"name": "Acme", "ownerEmail": "owner@acme.example", "stripeCustomerId": f"cus_{org}"}
    assert (await people.call("PUT", f"{TENANTS}/{org}", json=wish)).status_code == 201
    key = ("admin", "create-key", "--org", org, "--name", "owner", "--owner")
    values = {"DATABASE_URL": address, "PYTHONPATH": str(release.path), **SECRETS}
    owner = (await run(*key, folder=folder, **values)).out.strip()
    await people.live(owner)
    for client in clients:
        await client.aclose()


def test_second_migration_comes_with_the_archive_of_the_release_before() -> None:
    """The first release has nothing before it, and its one migration."""
    is_first_release = revisions() == [FIRST_REVISION]
    assert is_first_release or ARCHIVE.exists(), "run python -m tests.support.releases COMMIT"


def test_released_migration_does_not_change(tmp_path: Path) -> None:
    released = unpacked(tmp_path).migrations() if ARCHIVE.exists() else {}
    assert released.items() <= of_this_tree().migrations().items()


async def test_earlier_release_works_on_the_later_schema_as_its_login(
    empty: str, tmp_path: Path, earlier: Release, later: Release
) -> None:
    with psycopg.connect(empty, autocommit=True) as superuser:
        superuser.execute("CREATE ROLE of_earlier LOGIN")
        try:
            await migrated(empty, tmp_path, earlier, "--grant-to", "of_earlier")
            await migrated(empty, tmp_path, later)
            address = as_url(make_conninfo(empty, user="of_earlier"))
            async with service(address, tmp_path, earlier) as old:
                await settled(address, tmp_path, old, release=earlier)
            # and the later one, whose login is granted nothing again
            async with service(address, tmp_path, later) as new:
                await settled(address, tmp_path, new, org="later", release=later)
        finally:
            superuser.execute("DROP OWNED BY of_earlier")
            superuser.execute("DROP ROLE of_earlier")


async def test_earlier_release_works_on_the_later_schema_as_the_owner_of_its_tables(
    empty: str, tmp_path: Path, earlier: Release, later: Release
) -> None:
    with psycopg.connect(empty, autocommit=True) as superuser:
        superuser.execute("CREATE ROLE owner_of_earlier LOGIN")
        superuser.execute("GRANT ALL ON SCHEMA public TO owner_of_earlier")
        try:
            by_owner = make_conninfo(empty, user="owner_of_earlier")
            await migrated(by_owner, tmp_path, later)
            async with service(as_url(by_owner), tmp_path, earlier) as old:
                await settled(as_url(by_owner), tmp_path, old, release=earlier)
        finally:
            superuser.execute("DROP OWNED BY owner_of_earlier")
            superuser.execute("DROP ROLE owner_of_earlier")


async def test_both_releases_work_beside_each_other(
    empty: str, tmp_path: Path, earlier: Release, later: Release
) -> None:
    await migrated(empty, tmp_path, later)
    address = as_url(empty)
    async with (
        service(address, tmp_path, earlier) as old,
        service(address, tmp_path, later) as new,
    ):
        await settled(address, tmp_path, old, new, release=later)


async def test_later_release_reports_that_it_waits_for_its_schema_and_continues(
    empty: str, tmp_path: Path, earlier: Release, later: Release
) -> None:
    await migrated(empty, tmp_path, earlier)
    port = str(free_port())
    values = {
        "DATABASE_URL": as_url(empty),
        "PYTHONPATH": str(later.path),
        "PORT": port,
        "RUN_JOBS": "false",
        "DRAIN_SECONDS": "0",
        **SECRETS,
    }
    async with (
        running("serve", "--no-migrate", folder=tmp_path, **values) as command,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        waits = f"The schema is at {earlier.revision}, and this release needs {later.revision}"
        await command.until(waits, "err")
        answer = await when_it_listens(client)
        assert (answer.status_code, answer.json()["waitingFor"]) == (503, ["schema"])
        assert "tenantry is ready" not in command.text["err"]
        changed = f"schema: {earlier.revision} -> {later.revision}\n"
        assert await migrated(empty, tmp_path, later) == changed
        await command.until("tenantry is ready", "err")
        assert (await client.get("/readyz")).status_code == 200


async def when_it_listens(client: httpx2.AsyncClient) -> httpx2.Response:
    """What ``/readyz`` says as soon as it says anything."""
    while True:
        try:
            return await client.get("/readyz")
        except httpx2.ConnectError:
            await asyncio.sleep(0)
