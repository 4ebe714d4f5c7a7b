"""The commands of docs/how-to/debian.md, as they are printed, in a real systemd beside Debian's
PostgreSQL.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.documentation import ROOT, blocks
from tests.support.ports import free_port
from tests.support.required import debian_program, skip_or_fail
from tests.support.systemd import Machine, running_systemd

PAGE: Final = ROOT / "docs" / "how-to" / "debian.md"
TEXTS: Final = [block.text for block in blocks(PAGE)]
NOTE: Final = f"excerpt: for root; {Path(__file__).relative_to(ROOT)} runs it"
COMMANDS: Final = [block.text for block in blocks(PAGE) if block.note == NOTE]
SHOWN: Final = "3001"
PORT: Final = str(free_port())
SOCKETS: Final = "/run/postgresql"


@contextmanager
def debian_postgres(machine: Machine, folder: Path) -> Iterator[None]:
    """Debian's PostgreSQL, which knows the users of its socket by the names of their accounts, as
    Debian sets it up.
    """
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        skip_or_fail("Debian's PostgreSQL is not installed: apt-get install postgresql")
    data = folder / "data"
    as_postgres = ["runuser", "-u", "postgres", "--"]
    options = f"-c listen_addresses= -c unix_socket_directories={SOCKETS}"
    control = [
        *as_postgres,
        str(programs[-1] / "pg_ctl"),
        "-D",
        str(data),
        "-l",
        str(folder / "log"),
        "-w",
    ]
    for command in (
        ["umount", f"{SOCKETS}/.s.PGSQL.5432"],
        ["rm", f"{SOCKETS}/.s.PGSQL.5432"],
        ["chown", "postgres", SOCKETS, str(folder)],
        [
            *as_postgres,
            str(programs[-1] / "initdb"),
            "-D",
            str(data),
            "--auth-local=peer",
            "--encoding=UTF8",
        ],
        [*control, "-o", options, "start"],
    ):
        in_machine(machine, *command)
    try:
        yield
    finally:
        in_machine(machine, *control, "-m", "immediate", "stop")


def in_machine(machine: Machine, *command: str) -> str:
    done = machine.run(*command)
    assert done.code == 0, f"{command}: {done.out}\n{machine.log()}"
    return done.out


@pytest.fixture
def machine() -> Iterator[Machine]:
    """systemd and PostgreSQL before the guide's second step: the package is installed, and no role
    is made.
    """
    with tempfile.TemporaryDirectory(prefix="tenantry-debian-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "socket").touch()
        with running_systemd(folder / "socket", {}, {}) as machine:
            # what the guide installs outside of /etc and /opt must not stay
            in_machine(
                machine, "mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/usr/local/sbin"
            )
            machine.start("dbus.socket")
            with debian_postgres(machine, folder):
                yield machine


def test_deployment_by_the_guide_answers_its_first_key(machine: Machine) -> None:
    assert len(COMMANDS) == 5
    shown = [
        in_machine(machine, "bash", "-ec", f"cd {ROOT}\n{command.replace(SHOWN, PORT)}")
        for command in COMMANDS
    ]
    assert '"status":"ok"' in shown[2]
    assert "problem " not in shown[3]
    [secret] = re.findall(r"svc_live_\w{49}", shown[3])
    who = f"http://127.0.0.1:{PORT}/api/v1/auth/whoami"
    assert '"orgId":"acme"' in in_machine(
        machine, "curl", "-s", who, "-H", f"Authorization: Bearer {secret}"
    )
    # restarted with the mail server's address
    for unit in (f"tenantry@{PORT}.service", "tenantry-worker.service"):
        assert "SMTP_URL_FILE=" in machine.shown(unit, "Environment")
        assert machine.shown(unit, "ActiveState") == "active"


def test_configuration_of_nginx_is_valid(tmp_path: Path) -> None:
    [server] = [text for text in TEXTS if text.startswith("server {")]
    file = tmp_path / "nginx.conf"
    own_port = server.replace("listen 80;", f"listen 127.0.0.1:{free_port()};").replace(
        "listen [::]:80;", ""
    )
    file.write_text(
        f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{own_port}\n}}\n"
    )
    done = subprocess.run(
        [debian_program("nginx"), "-t", "-p", tmp_path, "-c", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_configuration_of_caddy_is_valid(tmp_path: Path) -> None:
    [site] = [text for text in TEXTS if text.startswith("accounts.example.com {")]
    file = tmp_path / "Caddyfile"
    file.write_text(site)
    done = subprocess.run(
        [debian_program("caddy"), "adapt", "--config", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f'"dial":"127.0.0.1:{SHOWN}"' in done.stdout
