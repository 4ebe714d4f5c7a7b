"""Everything is lost and restored from a backup: the service continues and catches up with the
payment provider.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import psycopg
import pytest

from tenantry.common.clock import system_clock
from tenantry_devkit.simulator import SECRET_KEY
from tests.support.app import PEPPER, WEBHOOK_SECRET
from tests.support.backup import Cluster, debian_binaries, hand_over, own_binaries
from tests.support.billing import rows
from tests.support.commands import Done, run, running
from tests.support.ports import free_port
from tests.support.postgres import as_url
from tests.support.service import PROJECTS
from tests.support.truth import World, running_world

READS: Final = "projects:read"
STATE: Final = """
SELECT id, plan, subscription_status, current_period_end, cancel_at_period_end, stripe_customer_id
  FROM tenants WHERE id <> ALL(%s) ORDER BY id
"""


class Method(ABC):
    """A way to make backups of a cluster, and to make another cluster of them."""

    def __init__(self, folder: Path, binaries: Path, archive: Path | None = None) -> None:
        for name in ("lost", "kept", "new"):
            (folder / name).mkdir(exist_ok=True)
        self.backups = folder / "kept"
        self.lost = Cluster(folder / "lost", binaries, archive)
        self.new = Cluster(folder / "new", binaries)

    @abstractmethod
    def begin(self) -> None:
        """What is done once, while the service is young."""

    @abstractmethod
    def back_up(self) -> None:
        """Now is the moment that is to be restored."""

    @abstractmethod
    def end(self) -> None:
        """The last thing before the loss."""

    @abstractmethod
    def restored(self) -> AbstractContextManager[str]:
        """The new cluster, running, with what was backed up; its connection string."""


class Dump(Method):
    """pg_dump."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, own_binaries())

    def begin(self) -> None:
        pass

    def back_up(self) -> None:
        done = self.lost.script("backup.sh", self.backups)
        assert done.returncode == 0, done.stderr
        self._file = done.stdout.strip()

    def end(self) -> None:
        pass

    @contextmanager
    def restored(self) -> Iterator[str]:
        with self.new.running():
            done = self.new.script("restore.sh", self._file)
            assert done.returncode == 0, done.stderr
            yield self.new.conninfo


class PointInTime(Method):
    """A base backup, and the WAL up to a moment."""

    def __init__(self, folder: Path) -> None:
        self._archive = folder / "kept" / "wal"
        self._archive.mkdir(parents=True)
        super().__init__(folder, debian_binaries(), self._archive)
        self.moment: datetime | None = None
        """To be restored; None for all that was archived."""

    def begin(self) -> None:
        hand_over(self.backups, like=self.lost.data)
        done = self.lost.script("base-backup.sh", self.backups)
        assert done.returncode == 0, done.stderr
        self._base = done.stdout.strip()

    def back_up(self) -> None:
        with psycopg.connect(self.lost.conninfo) as connection:
            [[self.moment]] = connection.execute("SELECT clock_timestamp()").fetchall()

    def end(self) -> None:
        self.lost.archived()

    @contextmanager
    def restored(self) -> Iterator[str]:
        moment = (
            [self.moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")] if self.moment else []
        )  # as in docs/how-to/backup.md
        done = self.new.script("restore-to.sh", self._base, self._archive, self.new.data, *moment)
        assert done.returncode == 0, done.stderr
        hand_over(self.new.data, like=self.lost.data)
        with self.new.running():
            self.new.promoted()
            yield self.new.conninfo


@pytest.fixture(params=[Dump, PointInTime])
def method(request: pytest.FixtureRequest, place: Path) -> Iterator[Method]:
    """A cluster that runs until it is lost, and a way to have it back."""
    method: Method = request.param(place)
    with method.lost.running(migrated=True):
        yield method


def test_one_archive_leads_to_a_moment_though_an_earlier_one_was_tried_before(place: Path) -> None:
    lost, backups = PointInTime(place), []
    with lost.lost.running(), psycopg.connect(lost.lost.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE written (n int)")
        lost.begin()
        for number in range(3):
            connection.execute("INSERT INTO written VALUES (%s)", (number,))
            lost.back_up()
            backups.append(lost.moment)
        connection.execute("INSERT INTO written VALUES (3)")
        lost.end()
    for number, moment in enumerate([*backups, None]):
        folder = place / f"new{number}"
        folder.mkdir()
        lost.new, lost.moment = Cluster(folder, debian_binaries()), moment
        with lost.restored() as conninfo, psycopg.connect(conninfo, autocommit=True) as connection:
            written = connection.execute("SELECT n FROM written ORDER BY n").fetchall()
            assert [n for (n,) in written] == list(range(number + 1))


class Story:
    """What happens before and after the backup, at the service and at the provider."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.keys: dict[str, str] = {}

    async def before(self) -> None:
        world = self.world
        self.steady, self.upgraded, self.cancelled, self.failing = [
            await world.subscriber("price_pro") for _ in range(4)
        ]
        await world.passes(days=29)
        assert self.steady.organization is not None
        self.owner = self.steady.organization
        self.revoked = await world.service.key(self.owner.owner, self.steady.id, READS)
        self.keys["revoked"] = str(self.revoked.caller.credential)
        self.keys["kept"] = str(self.owner.owner.credential)

    async def after(self) -> datetime:
        """Returns when it began, by the provider's clock."""
        world, began = self.world, self.world.simulator.now
        await world.passes(minutes=5)
        world.simulator.change_plan(world.subscription(self.upgraded), "price_business")
        world.simulator.cancel(world.subscription(self.cancelled))
        world.simulator.card_declines(self.failing.customer)
        self.newcomer = await world.subscriber("price_pro")
        await world.passes(days=3)
        await self.owner.owner.delete(self.revoked.path)
        made = await world.service.key(self.owner.owner, self.steady.id, READS)
        self.keys["made"] = str(made.caller.credential)
        return began

    async def states(self, conninfo: str) -> list[dict[str, Any]]:
        """What every tenant of before the backup is."""
        return await rows(conninfo, STATE, [self.newcomer.id])


async def test_a_restored_service_ends_in_the_states_of_an_undisturbed_one(
    method: Method, tmp_path: Path
) -> None:
    async with running_world(
        method.lost.conninfo, now=system_clock() - timedelta(days=33)
    ) as world:
        story = Story(world)
        await asyncio.to_thread(method.begin)
        await story.before()
        await asyncio.to_thread(method.back_up)
        began = await story.after()
        trail = await run(
            "admin", "export-audit", folder=tmp_path, DATABASE_URL=as_url(method.lost.conninfo)
        )
        (tmp_path / "audit.ndjson").write_text(trail.out)
        await asyncio.to_thread(method.end)
        undisturbed = await story.states(method.lost.conninfo)
        assert len(undisturbed) == 4
        with method.restored() as conninfo:
            settings = settings_on(conninfo, world.simulator.url)
            assert await story.states(conninfo) != undisturbed
            await check_after_restore(tmp_path, settings)
            async with serving(tmp_path, settings) as client:
                caught_up = await backfill(began, tmp_path, settings)
                assert await story.states(conninfo) == undisturbed
                assert await statuses(client, story.keys) == {
                    "kept": 200,
                    "revoked": 401,
                    "made": 401,
                }
                await check_ledger(conninfo, method.lost.conninfo)
            assert "parked" in caught_up.out, "the events of a tenant that is gone wait for it"


def settings_on(conninfo: str, provider: str) -> dict[str, str]:
    return {
        "DATABASE_URL": as_url(conninfo),
        "API_KEY_PEPPER": PEPPER,
        "PROVIDER_WEBHOOK_SECRET": WEBHOOK_SECRET,
        "SESSION_SECRET": "another-session-secret-after-the-restore",
        "PROVIDER_SECRET_KEY": SECRET_KEY,
        "PROVIDER_API_BASE": provider,
        "PORT": str(free_port()),
        "RECONCILE_HOURS": "0",
    }


async def check_after_restore(folder: Path, settings: dict[str, str]) -> None:
    assert (await run("migrate", folder=folder, **settings)).code == 0
    done = await run(
        "admin",
        "after-restore",
        "--audit",
        "audit.ndjson",
        "--hold-mail",
        folder=folder,
        **settings,
    )
    assert done.code == 0, done.out + done.err
    assert " 1 redone," in done.out


async def backfill(began: datetime, folder: Path, settings: dict[str, str]) -> Done:
    done = await run("backfill", "--since", began.isoformat(), folder=folder, **settings)
    assert done.code == 0, done.err
    return done


async def statuses(client: httpx2.AsyncClient, keys: dict[str, str]) -> dict[str, int]:
    """What each key is answered."""
    return {
        name: (await client.get(PROJECTS, headers={"Authorization": f"Bearer {key}"})).status_code
        for name, key in keys.items()
    }


async def check_ledger(restored: str, undisturbed: str) -> None:
    """Each event that the undisturbed ledger has is in the restored one, once."""
    every = "SELECT id FROM billing_events ORDER BY id"
    assert await rows(restored, every) == await rows(undisturbed, every)


@asynccontextmanager
async def serving(folder: Path, settings: dict[str, str]) -> AsyncIterator[httpx2.AsyncClient]:
    """The service as a process, for the time of the block."""
    async with running("serve", "--no-jobs", folder=folder, **settings) as command:
        await command.until("tenantry is ready", "err")
        address = f"http://127.0.0.1:{settings['PORT']}"
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=30) as client:
            yield client
