"""A running systemd in separate namespaces, with only the units of examples/systemd.

What is mounted there is seen there alone. It needs root, and is required
(`tests.support.required`).
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pytest

from tests.support.installed import ROOT, build_wheels, install_wheels
from tests.support.required import debian_program, skip_or_fail

UNITS: Final = ROOT / "examples" / "systemd"
_PROGRAM: Final = Path("/lib/systemd/systemd")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_PATIENCE: Final = 60
_SOCKET: Final = "/run/postgresql/.s.PGSQL.5432"
_SHOWN: Final = 4000
_TARGETS: Final = (
    "sysinit",
    "basic",
    "shutdown",
    "umount",
    "network",
    "network-online",
    "multi-user",
    "default",
)
# There is no journal; and a Python that is not the system's may look for its library where it was
# built.
_HERE: Final = """\
[Service]
StandardOutput=append:{log}
StandardError=append:{log}
{python}"""
_PYTHON: Final = "Environment=LD_LIBRARY_PATH=/opt/python/lib\n"
# What systemd-run asks by.
_BUS: Final = {
    "dbus.socket": "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/dbus/system_bus_socket\n",
    "dbus.service": """\
[Unit]
DefaultDependencies=no
Requires=dbus.socket
[Service]
Type=notify
ExecStart={program} --system --address=systemd: --nofork --nopidfile --systemd-activation
""",
}

# Everything that is mounted is gone with the namespace. /etc and /opt get what an installation has
# put there.
_BOOT: Final = """\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs "$FOLDER/layer"
mkdir "$FOLDER/layer/upper" "$FOLDER/layer/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$FOLDER/layer/upper,workdir=$FOLDER/layer/work" overlay /etc
mkdir -p /etc/tenantry
cp -a "$FOLDER/etc/." /etc/tenantry/
mount -t tmpfs -o mode=755 tmpfs /etc/systemd/system
mount -t tmpfs -o mode=755 tmpfs /opt
mkdir -p /opt/python "/opt/tenantry/bin" "/opt/tenantry/lib/$VERSION/site-packages" /opt/tenantry/release
mount --bind "$BASE" /opt/python
mount --bind "$PACKAGES" "/opt/tenantry/lib/$VERSION/site-packages"
mount --bind "$FOLDER/release" /opt/tenantry/release
ln -s "/opt/python/bin/$VERSION" /opt/tenantry/bin/python
printf 'home = /opt/python/bin\\n' >/opt/tenantry/pyvenv.cfg
cat >/opt/tenantry/bin/tenantry <<'END'
#!/opt/tenantry/bin/python
import sys
sys.path.insert(0, "/opt/tenantry/release")
from tenantry_cli.commands import main
if __name__ == "__main__":
    main()
END
chmod 755 /opt/tenantry/bin/tenantry
mkdir -p /run/postgresql
touch /run/postgresql/.s.PGSQL.5432
mount --bind "$DATABASE" /run/postgresql/.s.PGSQL.5432
mount -t tmpfs tmpfs /sys/fs/cgroup
mount --make-rshared /
exec env -i container=tenantry PATH="$PATH" SYSTEMD_UNIT_PATH="$FOLDER/units:/etc/systemd/system" \
  "$PROGRAM" --system --log-target=console --show-status=no
"""


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str


class Machine:
    """The running systemd, and what its services write."""

    def __init__(self, process: psutil.Process, log: Path, database: Path) -> None:
        self._process = process
        self._log = log
        self._database = database

    def run(self, *command: str) -> Done:
        """What a command comes to there; stderr is part of what it writes."""
        inside = ["nsenter", "--target", str(self._process.pid), "--all", "--wd=/", *command]
        done = subprocess.run(
            inside,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3 * _PATIENCE,
            check=False,
        )
        return Done(done.returncode, done.stdout)

    def start(self, *units: str) -> None:
        """Start units; returns once they say that they have."""
        done = self.run("systemctl", "start", *units)
        assert done.code == 0, f"{done.out}\n{self.log()}"

    @contextmanager
    def without_database(self) -> Iterator[None]:
        """Nothing listens where the database is, for the time of the block."""
        assert self.run("umount", _SOCKET).code == 0
        try:
            yield
        finally:
            done = self.run("mount", "--bind", str(self._database), _SOCKET)
        assert done.code == 0, done.out

    def shown(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).out.strip()

    def process(self, unit: str) -> psutil.Process:
        """The main process of a unit, as it is seen from here."""
        own = int(self.shown(unit, "MainPID"))
        return next(
            child
            for child in self._process.children(recursive=True)
            if _inner_pid(child.pid) == own
        )

    def until(self, unit: str, name: str, value: str) -> None:
        """Return once a property has this value."""
        deadline = time.monotonic() + _PATIENCE
        while (found := self.shown(unit, name)) != value:
            assert time.monotonic() < deadline, f"{unit}: {name} is {found}\n{self.log()}"
            time.sleep(0.1)

    def log(self) -> str:
        """The end of what the services have written."""
        return self._log.read_text(errors="replace")[-_SHOWN:] if self._log.exists() else ""


@contextmanager
def running_systemd(
    socket: Path, secrets: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[Machine]:
    """systemd with the units of the examples, installed as docs/how-to/deploying.md says.

    ``socket`` is that of the PostgreSQL at /run/postgresql. ``secrets`` are the files of
    /etc/tenantry/secrets, ``settings`` lines that stand after the example's in
    /etc/tenantry/tenantry.env.
    """
    if not _PROGRAM.exists():
        skip_or_fail("systemd is not installed; on Debian: apt-get install systemd")
    if os.geteuid() != 0:
        skip_or_fail("needs root, to run systemd in separate namespaces")
    with tempfile.TemporaryDirectory(prefix="tenantry-systemd-") as name, _own_cgroups() as cgroups:
        folder = Path(name)
        folder.chmod(0o755)
        _lay_out(folder, secrets, settings)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        environment = {
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "FOLDER": str(folder),
            "BASE": sys.base_prefix,
            "VERSION": version,
            "PACKAGES": str(Path(sys.prefix) / "lib" / version / "site-packages"),
            "DATABASE": str(socket),
            "PROGRAM": str(_PROGRAM),
        }
        enter = "".join(f"echo $$ >{group}/cgroup.procs; " for group in cgroups)
        unshare = (
            "exec unshare --pid --fork --kill-child --mount-proc --mount --uts --ipc --cgroup sh -c"
        )
        with (folder / "systemd.log").open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", f'{enter}{unshare} "$0"', _BOOT],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield Machine(
                _booted(process, folder / "systemd.log"), folder / "log" / "services.log", socket
            )
        finally:
            process.kill()
            process.wait()


def _lay_out(folder: Path, secrets: Mapping[str, str], settings: Mapping[str, str]) -> None:
    for name in ("units", "layer", "log"):
        (folder / name).mkdir()
    for unit in UNITS.glob("*.service"):
        shutil.copy(unit, folder / "units")
        drop_ins = folder / "units" / f"{unit.name}.d"
        drop_ins.mkdir()
        (drop_ins / "here.conf").write_text(
            _HERE.format(log=folder / "log" / "services.log", python=_PYTHON)
        )
    commands = folder / "units" / "tenantry-command-.service.d"
    commands.mkdir()
    (commands / "here.conf").write_text(f"[Service]\n{_PYTHON}")
    for bus, unit_file in _BUS.items():
        (folder / "units" / bus).write_text(unit_file.format(program=debian_program("dbus-daemon")))
    for target in _TARGETS:
        (folder / "units" / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    held = folder / "etc" / "secrets"
    held.mkdir(parents=True, mode=0o700)
    for name, secret in secrets.items():
        (held / name).write_text(f"{secret}\n")
        (held / name).chmod(0o600)
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    (folder / "etc" / "tenantry.env").write_text((UNITS / "tenantry.env").read_text() + lines)
    install_wheels(build_wheels(folder / "build"), folder / "release")


def _booted(process: "subprocess.Popen[bytes]", log: Path) -> psutil.Process:
    """The first process of the namespace, once it takes commands."""
    outer, deadline = psutil.Process(process.pid), time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        for child in outer.children():
            # as that process sees it
            if Path("/proc", str(child.pid), "root", "run/systemd/private").exists():
                return child
        time.sleep(0.02)
    pytest.fail(f"systemd does not start:\n{log.read_text()}")


def _inner_pid(pid: int) -> int | None:
    """The number of a process in its own namespace."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


@contextmanager
def _own_cgroups() -> Iterator[list[Path]]:
    """A cgroup in each hierarchy, in which systemd makes its own; all are gone after the block."""
    roots = [root for root in (_CGROUPS, *_CGROUPS.glob("*/")) if (root / "cgroup.procs").exists()]
    roots = [root for root in roots if os.path.ismount(root)]
    groups = [root / f"tenantry-test-{os.getpid()}" for root in roots]
    for group in groups:
        group.mkdir()
    try:
        yield [group for group in groups if _is_usable(group)]
    finally:
        for group in groups:
            deadline = time.monotonic() + _PATIENCE
            while _members(group) and time.monotonic() < deadline:
                time.sleep(0.02)
            for folder, _, _ in sorted(os.walk(group), reverse=True):
                Path(folder).rmdir()


def _is_usable(group: Path) -> bool:
    """Whether a process can be put into it: one of cpuset has no processors at first."""
    cpus = group / "cpuset.cpus"
    return not cpus.exists() or bool(cpus.read_text().strip())


def _members(group: Path) -> bool:
    return any((Path(folder) / "cgroup.procs").read_text() for folder, _, _ in os.walk(group))
