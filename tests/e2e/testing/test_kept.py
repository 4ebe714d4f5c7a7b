"""The processes that the plugin keeps."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict

from tenantry_devkit.testing import StartError
from tenantry_devkit.testing.service import Kept, complete


@pytest.fixture
def folder(place: Path) -> Path:
    made = place / "kept"
    made.mkdir()
    return made


@pytest.fixture
def kept(folder: Path) -> Iterator[Kept]:
    with Kept(folder) as kept:
        yield kept


def processes_of(folder: Path, *, recursive: bool = True) -> list[psutil.Process]:
    """Processes below this one whose command line names the folder."""
    found = []
    for process in psutil.Process().children(recursive=recursive):
        with suppress(psutil.NoSuchProcess):  # some of PostgreSQL's end meanwhile
            if str(folder) in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_a_service_that_does_not_start_says_why(kept: Kept) -> None:
    kept.database()
    with pytest.raises(StartError, match="`tenantry serve` ended with code 2") as failed:
        kept.serve({"API_KEY_PEPPER": "short"})
    assert "API_KEY_PEPPER: is shorter than 32 characters" in str(failed.value)
    assert "PROVIDER_WEBHOOK_SECRET: is missing" in str(failed.value)


def test_a_database_that_does_not_start_says_why(folder: Path) -> None:
    (folder / "postgres").write_text("in the way of the database")
    with Kept(folder) as kept, pytest.raises(StartError, match="The embedded PostgreSQL does not start"):
        kept.database()


def test_what_is_kept_ends_with_its_folder(folder: Path) -> None:
    with Kept(folder) as kept:
        address = kept.serve({**complete({}), "DATABASE_URL": kept.database()})
        document = httpx2.get(f"{address}/api/v1/openapi.json", trust_env=False).json()
        assert document["servers"] == [{"url": address}]
        ours = processes_of(folder)
        assert ours
    assert [process for process in ours if process.is_running()] == []
    assert not folder.exists()


def test_nothing_is_left_elsewhere_of_a_database_whose_folder_has_a_long_path(place: Path) -> None:
    folder = place / ("d" * 120)
    folder.mkdir()
    with Kept(folder) as kept:
        sockets = Path(str(conninfo_to_dict(kept.database())["host"]))
        assert place not in sockets.parents
        assert sockets.exists()
    assert not sockets.exists()


def test_a_keeper_that_was_killed_is_told_of(folder: Path, kept: Kept) -> None:
    kept.database()
    [keeper] = processes_of(folder, recursive=False)
    keeper.send_signal(signal.SIGTERM)
    keeper.wait(30)
    with pytest.raises(StartError, match="The process that keeps the service has ended"):
        kept.serve(complete({}))
