"""What the scripts of examples/backup leave behind where they fail; the programs that they call are made up."""

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.support.backup import run_script

WRITES_A_FILE: Final = 'for last; do :; done; echo content >"${last#--file=}"'
WRITES_A_FOLDER: Final = 'for option; do case $option in --pgdata=*) mkdir "${option#*=}"; esac; done'
FAILS: Final = "exit 1"
INTERRUPTS: Final = 'kill -TERM "$PPID"'


class Machine:
    """A PATH with little on it, and an empty folder for the backups."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs, self.kept = folder / "programs", folder / "kept"
        self.programs.mkdir()
        self.kept.mkdir()
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
    done = run_script(script, machine.kept, binaries=machine.programs)
    assert done.returncode != 0
    assert list(machine.kept.iterdir()) == []


def test_a_missing_pg_verifybackup_is_told_of_before_the_cluster_is_copied(machine: Machine) -> None:
    machine.has("pg_basebackup", 'echo "the cluster is copied"')
    done = run_script("base-backup.sh", machine.kept, binaries=machine.programs)
    assert done.returncode != 0
    assert "the cluster is copied" not in done.stdout
    assert "pg_verifybackup is not on the PATH: Debian keeps it in /usr/lib/postgresql/" in done.stderr
