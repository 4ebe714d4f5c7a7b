"""A database with a full disk: writes are rejected temporarily, reads are answered."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenantry.db.migrate import migrate
from tests.support import events
from tests.support.database_server import FAST_SETTINGS, DatabaseServer, server_folder
from tests.support.required import skip_or_fail
from tests.support.service import PROJECTS, VERIFY, running_service
from tests.support.signing import deliver


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of 200 MB in memory."""
    if os.geteuid():
        skip_or_fail("mounting a file system of a fixed size takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def server() -> Iterator[DatabaseServer]:
    """A database on a small disk, with its write-ahead log elsewhere."""
    with server_folder() as folder:
        wal, data = folder / "wal", folder / "data"
        wal.mkdir()
        data.mkdir()
        with small_disk(data):
            server = DatabaseServer(data, FAST_SETTINGS, wal=wal)
            server.initialise()
            server.start()
            try:
                migrate(server.conninfo)
                yield server
            finally:
                server.stop()


@contextmanager
def filled(server: DatabaseServer) -> Iterator[None]:
    """No byte is left on its disk: a table with no room in its last page cannot grow."""
    filler = server.data.parent / "filler"
    with filler.open("wb", buffering=0) as out, pytest.raises(OSError, match="No space left"):
        out.writelines(itertools.repeat(bytes(4096)))
    try:
        yield
    finally:
        filler.unlink()


async def test_writes_are_deferred_and_reads_are_answered(server: DatabaseServer) -> None:
    async with running_service(server.conninfo) as service:
        org = await service.organization(stripeCustomerId="cus_1")
        event, at = (
            events.failed(customer="cus_1", event_id="evt_1"),
            int(service.clock.now.timestamp()),
        )
        with filled(server):
            refused = await deliver(service.client, event, at=at)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert (await org.owner.get(PROJECTS)).status_code == 200
            assert (await org.owner.get(f"{VERIFY}projects:read")).status_code == 200
        assert server.rows("SELECT id FROM billing_events") == []
        assert (await deliver(service.client, event, at=at)).status_code == 200
    assert server.rows("SELECT id FROM billing_events") == [("evt_1",)]
    assert server.rows("SELECT count(*) FROM notifications") == [(1,)]
