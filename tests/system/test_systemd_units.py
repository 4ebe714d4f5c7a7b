"""The units of examples/systemd, in a systemd that really runs."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.commands import SECRETS
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.systemd import UNITS, Machine, running_systemd

PORT: Final = free_port()
SERVER: Final = f"tenantry@{PORT}.service"
WORKER: Final = "tenantry-worker.service"
MIGRATION: Final = "tenantry-migrate.service"
LOGIN: Final = "tenantry"
NOT_FOUND: Final = 5
ADDRESS: Final = f"http://127.0.0.1:{PORT}"


@contextmanager
def service_login(conninfo: str) -> Iterator[None]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {LOGIN} LOGIN")
        yield
        connection.execute(f"DROP OWNED BY {LOGIN}")
        connection.execute(f"DROP ROLE {LOGIN}")


@pytest.fixture(scope="module")
def machine(postgres: PostgresServer) -> Iterator[Machine]:
    """systemd, with everything stopped."""
    with postgres.database(migrated=False) as conninfo, service_login(conninfo):
        parts = conninfo_to_dict(conninfo)
        address = f"postgresql:///{parts['dbname']}?host=/run/postgresql&user="
        secrets = {
            "database_owner_url": f"{address}{parts['user']}",
            "database_url": f"{address}{LOGIN}",
            **{name.lower(): secret for name, secret in SECRETS.items()},
        }
        with running_systemd(
            Path(str(parts["host"])) / f".s.PGSQL.{parts['port']}", secrets, {}
        ) as machine:
            yield machine


@pytest.fixture
def started(machine: Machine) -> Machine:
    """systemd, with a server and a worker; those that a test before has left running go on."""
    machine.start(SERVER, WORKER)
    return machine


def test_a_started_server_is_ready_on_a_database_that_was_empty(started: Machine) -> None:
    answer = httpx2.get(f"{ADDRESS}/readyz", trust_env=False)
    assert (answer.status_code, started.shown(MIGRATION, "Result")) == (200, "success")


@pytest.mark.parametrize("unit", [SERVER, WORKER], ids=["server", "worker"])
def test_a_service_can_change_nothing_and_gain_nothing(started: Machine, unit: str) -> None:
    process = started.process(unit)
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert process.uids().real not in (0, 65534)
    assert (status["NoNewPrivs"], status["Seccomp"], status["CapEff"].strip("0")) == ("1", "2", "")
    for place in ("/etc/tenantry", "/opt/tenantry", "/usr", "/var/lib"):
        assert "ro" in mounted_at(process.pid, place)
    assert SECRETS["API_KEY_PEPPER"] not in " ".join(process.environ().values())


def mounted_at(pid: int, place: str) -> list[str]:
    """How the file system is mounted that holds a place, as a process sees it."""
    rows = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    holding = [row for row in rows if place == row[4] or place.startswith(row[4].rstrip("/") + "/")]
    return max(enumerate(holding), key=lambda found: (len(found[1][4]), found[0]))[1][5].split(",")


@pytest.mark.parametrize("unit", [SERVER, WORKER], ids=["server", "worker"])
def test_a_killed_service_is_restarted(started: Machine, unit: str) -> None:
    before = int(started.shown(unit, "NRestarts"))
    started.process(unit).send_signal(signal.SIGKILL)
    started.until(unit, "NRestarts", str(before + 1))
    started.until(unit, "ActiveState", "active")


def test_a_command_runs_as_the_service_user_and_returns_its_exit_code(started: Machine) -> None:
    started.start("dbus.socket", "dbus.service")
    command = ("sh", str(UNITS / "command.sh"))
    done = started.run(*command, "doctor")
    assert done.code == 0, done.out
    assert f"{LOGIN} takes the service's roles" in done.out
    assert started.run(*command, "admin", "show-tenant", "missing").code == NOT_FOUND


def test_a_service_without_a_database_starts_when_it_is_available(started: Machine) -> None:
    assert started.run("systemctl", "stop", SERVER, WORKER).code == 0
    with started.without_database():
        assert started.run("systemctl", "start", "--no-block", SERVER, WORKER).code == 0
        started.until(MIGRATION, "Result", "exit-code")
        # had it begun, nothing would start the migration again
        started.until(WORKER, "Result", "exit-code")
    for unit in (SERVER, WORKER):
        started.until(unit, "ActiveState", "active")
    started.until(MIGRATION, "Result", "success")


def test_a_stop_ends_both_in_order_and_in_time(started: Machine) -> None:
    stopped = started.run("systemctl", "stop", SERVER, WORKER)
    assert stopped.code == 0
    for unit in (SERVER, WORKER):
        assert (started.shown(unit, "Result"), started.shown(unit, "ExecMainStatus")) == (
            "success",
            "0",
        )
    assert "Traceback" not in started.log()


def test_the_units_are_well_formed(machine: Machine) -> None:
    files = [str(UNITS / name) for name in (SERVER, WORKER, MIGRATION)]
    assert machine.run("systemd-analyze", "verify", "--recursive-errors=no", *files) == (0, "")
