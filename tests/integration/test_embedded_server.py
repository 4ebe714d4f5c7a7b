"""The embedded PostgreSQL."""

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.db.roles import ROLES
from tenantry_devkit.embedded_postgres import LOCK, EmbeddedServer, EmbeddedServerError
from tests.support.cluster import copy_cluster


def read(conninfo: str) -> int:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT n FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def setting(conninfo: str, name: str) -> str:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def write(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS n")


@pytest.fixture(scope="module")
def running(
    empty_cluster: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    """A server that runs, for tests that leave nothing behind."""
    server = EmbeddedServer(
        copy_cluster(empty_cluster, tmp_path_factory.mktemp("running")), ["work_mem=5MB"]
    )
    server.start()
    yield server
    server.stop()


def test_variables_of_libpq_lead_to_no_other_server(running: EmbeddedServer) -> None:
    other = {"PGHOST": "127.0.0.1", "PGHOSTADDR": "127.0.0.1", "PGPORT": "1", "PGDATABASE": "shop"}
    for address in (running.conninfo, running.url):
        connect = f"import psycopg; print(psycopg.connect({address!r}).info.dbname)"
        done = subprocess.run(
            [sys.executable, "-c", connect], env=other, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("postgres\n", "")


@pytest.fixture
def made(empty_cluster: Path, tmp_path: Path) -> Path:
    """A folder with a cluster that does not run."""
    return copy_cluster(empty_cluster, tmp_path / "made")


def identity(conninfo: str) -> tuple[object, ...]:
    """What tells this server and database from all others."""
    with psycopg.connect(conninfo) as connection:
        [row] = connection.execute(
            "SELECT pg_postmaster_start_time(), system_identifier, current_database() FROM pg_control_system()"
        ).fetchall()
    return tuple(row)


def postmaster(folder: Path) -> int:
    return int((folder / "postgres" / "postmaster.pid").read_text().splitlines()[0])


def test_second_start_keeps_the_data(made: Path) -> None:
    for first in (True, False):
        server = EmbeddedServer(made)
        server.start()
        if first:
            write(server.conninfo)
        assert read(server.conninfo) == 42
        server.stop()


def test_an_old_cluster_without_roles_gets_them_at_the_next_start(made: Path) -> None:
    for _ in range(2):
        server = EmbeddedServer(made)
        server.start()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            found = {
                row[0] for row in connection.execute("SELECT rolname FROM pg_roles").fetchall()
            }
            assert set(ROLES) <= found
            for role in ROLES:
                connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
        server.stop()


def test_stop_leaves_no_process(made: Path) -> None:
    server = EmbeddedServer(made)
    server.start()
    pid = postmaster(made)
    server.stop()
    assert not Path(f"/proc/{pid}").exists()


def synchronous_settings(conninfo: str) -> list[str]:
    names = ("fsync", "synchronous_commit", "full_page_writes", "work_mem")
    return [setting(conninfo, name) for name in names]


def test_server_waits_for_the_disk(running: EmbeddedServer) -> None:
    assert synchronous_settings(running.conninfo) == ["on", "on", "on", "5MB"]


def test_server_with_fsync_off_does_not_wait_for_the_disk(made: Path) -> None:
    server = EmbeddedServer(made, ["work_mem=5MB"], durable=False)
    server.start()
    try:
        assert synchronous_settings(server.conninfo) == ["off", "off", "off", "5MB"]
    finally:
        server.stop()


def test_url_and_conninfo_reach_the_same_database(running: EmbeddedServer) -> None:
    assert identity(running.url) == identity(running.conninfo)


def test_socket_has_a_short_path_where_the_temporary_folder_has_a_long_one(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 90)
    long.mkdir()
    code = (
        "import pathlib, sys; from tenantry_devkit.embedded_postgres import EmbeddedServer\n"
        "print(EmbeddedServer(pathlib.Path(sys.argv[1])).conninfo)"
    )
    command = [sys.executable, "-c", code, str(long)]
    environment = {**os.environ, "TMPDIR": str(long)}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("host=/tmp/tenantry-")


@pytest.mark.parametrize("name", ["a b", "a,b", 'a"b', "a'b", "a\\b", "a+b", "ä%41"])
def test_folder_may_have_any_name(empty_cluster: Path, tmp_path: Path, name: str) -> None:
    server = EmbeddedServer(copy_cluster(empty_cluster, tmp_path / name), durable=False)
    server.start()
    try:
        for address in (server.conninfo, server.url):
            with psycopg.connect(address) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()


def test_socket_in_another_folder_is_removed_with_the_server(
    empty_cluster: Path, tmp_path: Path
) -> None:
    server = EmbeddedServer(copy_cluster(empty_cluster, tmp_path / ("d" * 120)))
    server.start()
    sockets = Path(str(conninfo_to_dict(server.conninfo)["host"]))
    assert tmp_path not in sockets.parents
    assert sockets.exists()
    server.stop()
    assert not sockets.exists()


OF_ANOTHER_SERVER = """
import pathlib, sys
import psycopg
from tenantry_devkit.embedded_postgres import EmbeddedServer

server = EmbeddedServer(pathlib.Path(sys.argv[1]), durable=False)
server.start()
try:
    for address in (server.conninfo, server.url):
        psycopg.connect(address).close()
    print("connected", flush=True)
    sys.stdin.read()
finally:
    server.stop()
"""


def test_environment_variables_of_another_server_have_no_effect(tmp_path: Path) -> None:
    variables = {
        "PGPORT": "5433",
        "PGCLIENTENCODING": "SQL_ASCII",
        "PGDATESTYLE": "German",
        "PGDATA": "/elsewhere",
    }
    with subprocess.Popen(
        [sys.executable, "-c", OF_ANOTHER_SERVER, str(tmp_path)],
        env={**os.environ, **variables},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        conninfo = EmbeddedServer(tmp_path).conninfo
        assert setting(conninfo, "client_encoding") == "UTF8"
        assert setting(conninfo, "DateStyle") == "ISO, MDY"


def test_killed_server_restarts(made: Path) -> None:
    killed = EmbeddedServer(made)
    killed.start()
    write(killed.conninfo)
    os.kill(postmaster(made), signal.SIGKILL)
    killed.stop()
    server = EmbeddedServer(made)
    server.start()
    try:
        assert read(server.conninfo) == 42
    finally:
        server.stop()


def test_folder_may_be_setgid(made: Path) -> None:
    made.chmod(0o2750)  # setgid: folders made in it are so too
    for _ in range(2):
        server = EmbeddedServer(made, durable=False)
        server.start()
        server.stop()


def test_clients_reject_a_server_of_another_user(running: EmbeddedServer) -> None:
    account = pwd.getpwuid(
        Path(f"{conninfo_to_dict(running.conninfo)['host']}/.s.PGSQL.5432").stat().st_uid
    ).pw_name
    for address in (running.conninfo, running.url):
        assert conninfo_to_dict(address)["requirepeer"] == account
    other = make_conninfo(running.conninfo, requirepeer="bin" if account != "bin" else "daemon")
    with pytest.raises(psycopg.OperationalError, match="requirepeer"):
        psycopg.connect(other)


def test_server_does_not_start_while_its_folder_is_erased(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, removed = EmbeddedServer(made), []

    def while_removing(folder: Path, **_: object) -> None:
        with (made / LOCK).open("a") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        removed.append(folder.name)

    monkeypatch.setattr(shutil, "rmtree", while_removing)
    server.erase()
    assert "postgres" in removed
    assert not (made / LOCK).exists()


def test_second_process_shares_the_server_and_does_not_stop_it(made: Path) -> None:
    owner, guest = EmbeddedServer(made), EmbeddedServer(made)
    owner.start()
    try:
        guest.start()
        write(guest.conninfo)
        guest.stop()
        assert read(owner.conninfo) == 42
    finally:
        owner.stop()


def test_server_listens_on_a_private_socket_only(running: EmbeddedServer) -> None:
    assert setting(running.conninfo, "listen_addresses") == ""
    sockets = Path(str(conninfo_to_dict(running.conninfo)["host"]))
    assert sockets.stat().st_mode & 0o077 == 0


SECRETS_OF_PARENT = """
import pathlib, sys
import psycopg
from tenantry_devkit.embedded_postgres import EmbeddedServer

server = EmbeddedServer(pathlib.Path(sys.argv[1]), durable=False)
server.start()
try:
    with psycopg.connect(server.conninfo) as connection:
        connection.execute("CREATE TEMPORARY TABLE seen (line text)")
        connection.execute("COPY seen FROM PROGRAM 'env'")
        print([line for line, in connection.execute("SELECT line FROM seen ORDER BY line")])
finally:
    server.stop()
"""


def test_server_does_not_inherit_the_environment(made: Path) -> None:
    command = [sys.executable, "-c", SECRETS_OF_PARENT, str(made)]
    environment = {**os.environ, "API_KEY_PEPPER": "pepper-of-the-parent"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "PATH=" in shown.stdout
    assert "pepper-of-the-parent" not in shown.stdout


@pytest.fixture
def elsewhere(empty_cluster: Path, tmp_path: Path) -> tuple[EmbeddedServer, Path]:
    """A server whose socket folder is under the temporary directory, and that folder, which does
    not exist.
    """
    server = EmbeddedServer(copy_cluster(empty_cluster, tmp_path / ("d" * 120)), durable=False)
    return server, Path(str(conninfo_to_dict(server.conninfo)["host"]))


@pytest.mark.parametrize("planted", ["open", "link", "file", "of another user"])
def test_socket_folder_with_access_for_others_is_rejected(
    elsewhere: tuple[EmbeddedServer, Path], tmp_path: Path, planted: str
) -> None:
    server, sockets = elsewhere
    match planted:
        case "open":
            sockets.mkdir()
            sockets.chmod(0o777)
        case "link":
            (tmp_path / "target").mkdir(mode=0o700)
            sockets.symlink_to(tmp_path / "target")
        case "file":
            sockets.touch(mode=0o700)
        case _:
            if os.geteuid() != 0:
                pytest.skip("needs root")
            sockets.mkdir(mode=0o700)
            os.chown(sockets, 12345, 12345)
    before = sockets.lstat()
    try:
        with pytest.raises(
            EmbeddedServerError, match=f"{sockets}, .* must be a folder of this user with mode 0700"
        ):
            server.start()
        assert (sockets.lstat().st_mode, sockets.lstat().st_uid) == (before.st_mode, before.st_uid)
    finally:
        server.stop()
        sockets.rmdir() if sockets.is_dir() and not sockets.is_symlink() else sockets.unlink()


def test_socket_folder_of_a_previous_run_is_reused(elsewhere: tuple[EmbeddedServer, Path]) -> None:
    server, sockets = elsewhere
    sockets.mkdir(mode=0o700)
    server.start()
    try:
        write(server.conninfo)
    finally:
        server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_gets_a_message_for_every_opened_folder(
    empty_cluster: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = EmbeddedServer(copy_cluster(empty_cluster, closed / "data"), durable=False)
    server.start()
    server.stop()
    assert closed.stat().st_mode & 0o777 == 0o701
    assert f"cannot pass through {closed}: its mode changes from 0700 to 0701" in caplog.text


def test_server_starts_in_a_long_path(empty_cluster: Path, tmp_path: Path) -> None:
    server = EmbeddedServer(copy_cluster(empty_cluster, tmp_path / ("d" * 120)))
    server.start()
    write(server.conninfo)
    server.stop()


def test_failed_start_reports_the_reason_and_nothing_of_earlier_starts(made: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="nonsense_0"):
        EmbeddedServer(made, options=("shared_buffers=nonsense_0",)).start()
    with pytest.raises(EmbeddedServerError, match="nonsense_1") as raised:
        EmbeddedServer(made, options=("shared_buffers=nonsense_1",)).start()
    assert "nonsense_0" not in str(raised.value)


def test_interrupted_creation_of_a_cluster_is_repeated(tmp_path: Path) -> None:
    half_made = tmp_path / "postgres.new"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text("18\n")
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        write(server.conninfo)
        assert read(server.conninfo) == 42
    finally:
        server.stop()
