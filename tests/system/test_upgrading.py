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

from tenantry.db.migrate import migrate
from tests.support import events, previous
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import SECRETS, run, running
from tests.support.deployment import Deployment, deployed
from tests.support.findings import free_port
from tests.support.migrations import history, revisions
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import KEYS, PROJECTS, TENANTS, WHOAMI
from tests.support.signing import deliver

PREVIOUS = previous.newest_revision()
NEWEST = revisions()[-1]


@pytest.fixture(scope="module")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Python finds the release before."""
    return previous.unpack(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def old_schema(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    """A database as the release before left it."""
    with postgres.database(migrated=False) as conninfo:
        migrate(conninfo, history(tmp_path / "migrations", PREVIOUS))
        yield conninfo


@asynccontextmanager
async def service(address: str, folder: Path, *path: Path) -> AsyncIterator[Deployment]:
    """A service that migrates nothing: this release's, or another one on a path."""
    found = {"PYTHONPATH": str(path[0])} if path else {}
    values = {"WORKERS": "1", "OPERATOR_TOKEN": OPERATOR_TOKEN, **found}
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
        # by the newest: the release before the invitations cannot read the actions that came with
        # them
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        exported = await self._clients[-1].get(f"{TENANTS}/{self._org}/export", headers=headers)
        assert exported.status_code == 200, exported.text
        assert len(exported.json()["billingEvents"]) == 2

    def _next(self) -> httpx2.AsyncClient:
        self._turn += 1
        return self._clients[self._turn % len(self._clients)]


async def settled(
    address: str,
    folder: Path,
    *deployments: Deployment,
    org: str = "acme",
    release: Path | None = None,
) -> None:
    """Let a tenant live with these services; its first key is made by this release, unless another
    one is named.
    """
    clients = [deployment.client() for deployment in deployments]
    people = People(clients, org)
    wish = {"name": "Acme", "ownerEmail": "owner@acme.example", "stripeCustomerId": f"cus_{org}"}
    assert (await people.call("PUT", f"{TENANTS}/{org}", json=wish)).status_code == 201
    key = ("admin", "create-key", "--org", org, "--name", "owner", "--owner")
    found = {"PYTHONPATH": str(release)} if release else {}
    owner = (await run(*key, folder=folder, DATABASE_URL=address, **SECRETS, **found)).out.strip()
    await people.live(owner)
    for client in clients:
        await client.aclose()


def test_kept_release_lacks_the_newest_migration() -> None:
    assert PREVIOUS in revisions()[:-1], "make it anew: python -m tests.support.previous COMMIT"


async def test_release_before_works_on_the_new_schema(
    database_url: str, tmp_path: Path, release_before: Path
) -> None:
    async with service(database_url, tmp_path, release_before) as old:
        await settled(database_url, tmp_path, old)


async def test_previous_release_works_on_the_new_schema_as_its_login(
    old_schema: str, tmp_path: Path, release_before: Path
) -> None:
    """A login from before the roles has its own privileges; row-level security does not apply to
    it.
    """
    with psycopg.connect(old_schema, autocommit=True) as superuser:
        superuser.execute("CREATE ROLE of_before LOGIN")
        try:
            values = {"DATABASE_URL": as_url(old_schema), "PYTHONPATH": str(release_before)}
            given = await run("migrate", "--grant-to", "of_before", folder=tmp_path, **values)
            assert given.code == 0, given.err
            migrate(old_schema)
            address = as_url(make_conninfo(old_schema, user="of_before"))
            async with service(address, tmp_path, release_before) as old:
                await settled(address, tmp_path, old, release=release_before)
            # and this one, which takes no roles that it was not let into
            async with service(address, tmp_path) as new:
                await settled(address, tmp_path, new, org="later")
        finally:
            superuser.execute("DROP OWNED BY of_before")
            superuser.execute("DROP ROLE of_before")


async def test_release_before_works_on_the_new_schema_as_the_owner_of_its_tables(
    postgres: PostgresServer, tmp_path: Path, release_before: Path
) -> None:
    with (
        postgres.database(migrated=False) as conninfo,
        psycopg.connect(conninfo, autocommit=True) as superuser,
    ):
        superuser.execute("CREATE ROLE owner_of_before LOGIN")
        superuser.execute("GRANT ALL ON SCHEMA public TO owner_of_before")
        try:
            by_owner = make_conninfo(conninfo, user="owner_of_before")
            migrate(by_owner)
            async with service(as_url(by_owner), tmp_path, release_before) as old:
                await settled(as_url(by_owner), tmp_path, old, release=release_before)
        finally:
            superuser.execute("DROP OWNED BY owner_of_before")
            superuser.execute("DROP ROLE owner_of_before")


async def test_both_releases_work_beside_each_other(
    database_url: str, tmp_path: Path, release_before: Path
) -> None:
    async with (
        service(database_url, tmp_path, release_before) as old,
        service(database_url, tmp_path) as new,
    ):
        await settled(database_url, tmp_path, old, new)


async def test_new_release_reports_that_it_waits_for_its_schema_and_continues(
    old_schema: str, tmp_path: Path
) -> None:
    port = str(free_port())
    values = {
        "DATABASE_URL": as_url(old_schema),
        "PORT": port,
        "RUN_JOBS": "false",
        "DRAIN_SECONDS": "0",
        **SECRETS,
    }
    async with (
        running("serve", "--no-migrate", folder=tmp_path, **values) as command,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        await command.until(f"The schema is at {PREVIOUS}, and this release needs {NEWEST}", "err")
        answer = await when_it_listens(client)
        assert (answer.status_code, answer.json()["waitingFor"]) == (503, ["schema"])
        assert "tenantry is ready" not in command.text["err"]
        assert (
            await run("migrate", folder=tmp_path, **values)
        ).out == f"schema: {PREVIOUS} -> {NEWEST}\n"
        await command.until("tenantry is ready", "err")
        assert (await client.get("/readyz")).status_code == 200


async def when_it_listens(client: httpx2.AsyncClient) -> httpx2.Response:
    """What ``/readyz`` says as soon as it says anything."""
    while True:
        try:
            return await client.get("/readyz")
        except httpx2.ConnectError:
            await asyncio.sleep(0)
