"""What the scripts of examples/backup leave behind where they fail; the programs that they call are
made up.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.backup import SCRIPTS, run_script
from tests.support.documentation import ROOT, block_of

WRITES_A_FILE: Final = 'for last; do :; done; echo content >"${last#--file=}"'
WRITES_A_FOLDER: Final = (
    'for option; do case $option in --pgdata=*) mkdir "${option#*=}"; esac; done'
)
FAILS: Final = "exit 1"
INTERRUPTS: Final = 'kill -TERM "$PPID"'


class Machine:
    """A PATH with little on it, and an empty folder for the backups."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs, self.backups = folder / "programs", folder / "kept"
        self.programs.mkdir()
        self.backups.mkdir()
        for name in ("sh", "date", "mkdir", "mv", "rm", "sync"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        monkeypatch.setenv("PATH", str(self.programs))

    def has(self, name: str, script: str) -> None:
        program = self.programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_first_commands_of_the_guide_make_a_backup_where_there_was_no_folder(
    machine: Machine,
) -> None:
    block = block_of("how-to/backup.md", "install -D -m 755 -t")
    folder = machine.backups / "srv" / "backup"
    for name, does in {"pg_dump": WRITES_A_FILE, "pg_restore": ""}.items():
        machine.has(name, does)
    for name in ("env", "install"):
        (machine.programs / name).symlink_to(shutil.which(name, path=os.defpath) or "")
    command = block.replace("/srv/backup", str(folder)).replace(
        "/usr/local", str(machine.backups.parent / "local")
    )
    # the account of the tests
    command = command.replace(" -o postgres", "").replace("runuser -u postgres -- ", "")
    done = subprocess.run(
        ["sh", "-ec", command], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    [backups] = folder.iterdir()
    assert done.stdout == f"{backups}\n"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_command_of_the_guide_exports_the_audit_trail(machine: Machine) -> None:
    machine.has("tenantry", 'echo "$1 $2 $3"')
    (machine.programs / "install").symlink_to(shutil.which("install", path=os.defpath) or "")
    block = block_of("how-to/backup.md", "install -d -m 700 /srv/elsewhere/audit")
    command = block.replace("/srv/elsewhere/audit", str(machine.backups)).replace(
        "/usr/local/lib/tenantry", str(SCRIPTS)
    )
    done = subprocess.run(
        ["sh", "-ec", command], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    [backups] = machine.backups.iterdir()
    assert backups.read_text() == "admin export-audit --since\n"


@pytest.mark.parametrize("end", [FAILS, INTERRUPTS], ids=["fails", "interrupted"])
@pytest.mark.parametrize(
    ("script", "programs"),
    [
        ("backup.sh", {"pg_dump": WRITES_A_FILE, "pg_restore": ""}),
        ("base-backup.sh", {"pg_basebackup": WRITES_A_FOLDER, "pg_verifybackup": ""}),
        ("export-audit.sh", {"tenantry": "echo '{}'"}),
    ],
)
def test_a_backup_that_fails_leaves_nothing_behind(
    machine: Machine, script: str, programs: dict[str, str], end: str
) -> None:
    for name, does in programs.items():
        machine.has(name, does)
    machine.has(name, f"{does}\n{end}")
    done = run_script(script, machine.backups, binaries=machine.programs)
    assert done.returncode != 0
    assert list(machine.backups.iterdir()) == []


def test_a_missing_pg_verifybackup_is_reported_before_the_copy(machine: Machine) -> None:
    machine.has("pg_basebackup", 'echo "the cluster is copied"')
    done = run_script("base-backup.sh", machine.backups, binaries=machine.programs)
    assert done.returncode != 0
    assert "the cluster is copied" not in done.stdout
    assert (
        "pg_verifybackup is not on the PATH: Debian keeps it in /usr/lib/postgresql/" in done.stderr
    )
