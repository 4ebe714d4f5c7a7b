"""The processes that the plugin runs."""

import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx2
import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict

from tenantry_devkit.testing import StartError
from tenantry_devkit.testing.service import ServiceProcess, complete_settings


@pytest.fixture
def folder(place: Path) -> Path:
    made = place / "process"
    made.mkdir()
    return made


@pytest.fixture
def process(folder: Path) -> Iterator[ServiceProcess]:
    with closing(ServiceProcess(folder)) as process:
        yield process


def processes_of(folder: Path, *, recursive: bool = True) -> list[psutil.Process]:
    """Processes below this one whose command line names the folder."""
    found = []
    for process in psutil.Process().children(recursive=recursive):
        with suppress(psutil.NoSuchProcess):  # some of PostgreSQL's end meanwhile
            if str(folder) in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.thorough
def test_start_error_of_the_service_has_the_reason(process: ServiceProcess) -> None:
    with pytest.raises(StartError, match="`tenantry serve` ended with code 1") as failed:
        process.serve({"API_KEY_PEPPER": "short"})
    assert "API_KEY_PEPPER: is shorter than 32 characters" in str(failed.value)
    assert "PROVIDER_WEBHOOK_SECRET: is missing" in str(failed.value)


@pytest.mark.thorough
def test_start_error_of_the_database_has_the_reason(folder: Path) -> None:
    (folder / "postgres").write_text("no folder")
    with (
        closing(ServiceProcess(folder)) as process,
        pytest.raises(StartError, match="The embedded PostgreSQL does not start"),
    ):
        process.serve(complete_settings({}))


def test_close_ends_all_processes_and_removes_the_folder_and_its_sockets(place: Path) -> None:
    folder = place / ("d" * 120)  # too long for a socket, which is in a folder elsewhere
    folder.mkdir()
    with closing(ServiceProcess(folder)) as process:
        served = process.serve(complete_settings({}))
        address = served.base_url
        document = httpx2.get(f"{address}/api/v1/openapi.json", trust_env=False).json()
        assert document["servers"] == [{"url": address}]
        sockets = Path(str(conninfo_to_dict(served.database)["host"]))
        assert place not in sockets.parents
        assert sockets.exists()
        ours = processes_of(folder)
        assert ours
    assert [process for process in ours if process.is_running()] == []
    assert not folder.exists()
    assert not sockets.exists()


def test_killed_supervisor_is_reported(folder: Path, process: ServiceProcess) -> None:
    found: list[psutil.Process] = []
    while not found:  # a process has no command line while it starts
        found = processes_of(folder, recursive=False)
    [supervisor] = found
    supervisor.send_signal(signal.SIGTERM)
    supervisor.wait(30)
    with pytest.raises(StartError, match="The process that runs the service has ended"):
        process.serve(complete_settings({}))
