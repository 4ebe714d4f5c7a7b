"""A database that Patroni manages: three etcd, three PostgreSQL and HAProxy, as in
examples/patroni.
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.proxies import EXAMPLES, example
from tests.system.machines.network import Network, ip

DATABASES: Final = ("db-1", "db-2", "db-3")
ETCDS: Final = ("etcd-1", "etcd-2", "etcd-3")
DATABASE: Final = "tenantry"
OWNER: Final = "tenantry"
PROXY_PORT: Final = 5000
PRIMARY_NAME: Final = "postgres.example"
"""The name in every certificate, under which HAProxy offers the primary."""
PATRONI: Final = "patroni"
POSTGRES: Final = "postgres"
ETCD: Final = "etcd"
_ACCOUNT: Final = "postgres"
_READ_ALL: Final = "+dac_read_search"
"""The capability with which the account reads a Python that lies in root's home: Patroni starts
itself again.
"""
_API_PORT: Final = 8008
_PACKAGES: Final = {
    "ip": "iproute2",
    "etcd": "etcd-server",
    "haproxy": "haproxy",
    "openssl": "openssl",
}
_VERSIONS: Final = Path("/usr/lib/postgresql")
_SCOPE: Final = "tenantry"
_TIMEOUT: Final = 120.0
_REQUEST_TIMEOUT: Final = 2.0
_POLL: Final = 0.1
_EXAMPLE_ADDRESS: Final = "192.0.2.1"
_TIMELINE: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END
"""


class Programs(NamedTuple):
    """Where the programs are."""

    patroni: Path
    """The folder of Patroni's commands."""
    postgres: Path
    """The folder of PostgreSQL's programs."""
    etcd: str
    haproxy: str

    @classmethod
    def find(cls) -> Self:
        """Find them. Raises `LookupError`, which names those that are not installed."""
        if os.geteuid() or not Path("/dev/net/tun").exists():
            raise LookupError("needs root and /dev/net/tun, for network namespaces")
        patroni = Path(
            os.environ.get("TENANTRY_TEST_PATRONI_BIN", Path(sys.prefix, "tools", "bin"))
        )
        if not (patroni / PATRONI).exists():
            raise LookupError("needs Patroni: make .venv/.patroni")
        path = f"{os.environ['PATH']}:/usr/sbin"
        found = {package: shutil.which(name, path=path) for name, package in _PACKAGES.items()}
        postgres = sorted(_VERSIONS.glob("*/bin"), key=lambda folder: int(folder.parent.name))
        missing = [package for package, program in found.items() if program is None]
        if not postgres:
            missing.append("postgresql")
        if missing:
            raise LookupError(f"apt-get install {' '.join(missing)}")
        return cls(patroni, postgres[-1], str(found["etcd-server"]), str(found["haproxy"]))


class PatroniCluster:
    """The machines with a database or etcd; secrets and data are below ``folder``."""

    def __init__(self, folder: Path, network: Network, programs: Programs) -> None:
        self.network = network
        self._folder = folder
        self._programs = programs
        self._account = pwd.getpwnam(_ACCOUNT)
        self._started: list[subprocess.Popen[bytes]] = []
        self._secrets: dict[str, str] = {}
        self._context: ssl.SSLContext | None = None

    # Set-up

    def start(self, watchdogs: Mapping[str, Path]) -> None:
        """Create the database; ``watchdogs`` are named pipes in place of devices, by machine."""
        self._create_secrets()
        for name in ETCDS:
            self._lay_out(name)
            self.start_etcd(name)
        for name in DATABASES:
            self._lay_out(name)
            self._configure_patroni(name, watchdogs.get(name))
            self.start_patroni(name)
        self.until_whole()

    @property
    def certificate_authority(self) -> Path:
        """The certificate that clients trust."""
        return self._folder / "secrets" / "ca.crt"

    def password(self, name: str) -> str:
        """Return one of the passwords."""
        return self._secrets[f"{name}_PASSWORD"]

    def _create_secrets(self) -> None:
        script = self._folder / "make-secrets.sh"
        shutil.copy(EXAMPLES / "patroni" / script.name, script)
        machines = [f"{name}.example={self.network.address(name)}" for name in (*DATABASES, *ETCDS)]
        subprocess.run([str(script), *machines], cwd=self._folder, check=True, capture_output=True)
        self._secrets = _read_variables((self._folder / "secrets" / "secrets.env").read_text())
        self._context = ssl.create_default_context(cafile=str(self.certificate_authority))

    def _lay_out(self, name: str) -> None:
        place = self._place(name)
        (place / "tls").mkdir(parents=True)
        (place / "run").mkdir()
        for source, target in (
            (f"{name}.example.crt", "server.crt"),
            (f"{name}.example.key", "server.key"),
            ("ca.crt", "ca.crt"),
        ):
            shutil.copy(self._folder / "secrets" / source, place / "tls" / target)
        for path in (place, *place.rglob("*")):
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _configure_patroni(self, name: str, watchdog: Path | None) -> None:
        place = self._place(name)
        changes = {
            "/etc/patroni": str(place),
            "/var/lib/postgresql/15/tenantry": str(place / "data"),
            "/var/lib/postgresql/.patroni-pgpass": str(place / "pgpass"),
            "/run/postgresql": str(place / "run"),
            "/usr/lib/postgresql/15/bin": str(self._programs.postgres),
            **{f"{each}.example:": f"{self.network.address(each)}:" for each in ETCDS},
        }
        if watchdog is None:
            changes["mode: required"] = 'mode: "off"'
        else:
            changes["device: /dev/watchdog"] = f"driver: testing\n  device: {watchdog}"
        (place / "patroni.yml").write_text(example("patroni/patroni.yml", changes))
        shutil.copy(EXAMPLES / "patroni" / "create-database.sh", place)

    def _place(self, name: str) -> Path:
        return self._folder / name

    # Processes

    def start_etcd(self, name: str) -> None:
        """Start an etcd."""
        changes = {f"{each}.example": self.network.address(each) for each in ETCDS}
        changes |= {
            "/etc/etcd": str(self._place(name)),
            "/var/lib/etcd/tenantry": str(self._place(name) / "data"),
        }
        variables = _read_variables(example("patroni/etcd.env", changes)) | {"ETCD_NAME": name}
        for variable in ("ETCD_ADVERTISE_CLIENT_URLS", "ETCD_INITIAL_ADVERTISE_PEER_URLS"):
            variables[variable] = variables[variable].replace(
                self.network.address(ETCDS[0]), self.network.address(name)
            )
        self._start(name, [self._programs.etcd], variables)

    def start_patroni(self, name: str) -> None:
        """Start Patroni, which starts PostgreSQL if it does not run."""
        address = self.network.address(name)
        variables = _read_variables(
            example("patroni/machine.env", {"=db-1.example": f"={address}", "=db-1": f"={name}"})
        )
        command = [str(self._programs.patroni / PATRONI), str(self._place(name) / "patroni.yml")]
        self._start(name, command, self._secrets | variables)

    def _start(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        identity = [
            f"--reuid={self._account.pw_uid}",
            f"--regid={self._account.pw_gid}",
            "--clear-groups",
        ]
        capabilities = [f"--inh-caps={_READ_ALL}", f"--ambient-caps={_READ_ALL}"]
        within = [*self.network.within(name), "setpriv", *identity, *capabilities]
        self._run(
            [*within, *command],
            {"HOME": str(self._place(name)), **variables},
            self._place(name) / "log",
        )

    def _run(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as out:
            self._started.append(
                subprocess.Popen(
                    command,
                    env={"PATH": os.environ["PATH"], **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd="/",
                    start_new_session=True,
                )
            )

    def signal(self, machine: str, number: signal.Signals, program: str | None = None) -> int:
        """Send a signal to the processes of a machine, or of one program there; return how many
        there were.
        """
        processes = [
            process for process in self._processes(machine) if program in (None, _program(process))
        ]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return len(processes)

    def _processes(self, machine: str) -> Iterator[psutil.Process]:
        for pid in ip("netns", "pids", self.network.namespace(machine)).split():
            with contextlib.suppress(psutil.NoSuchProcess):
                yield psutil.Process(int(pid))

    def is_running(self, machine: str, program: str) -> bool:
        """Whether a program runs on a machine."""
        return any(_program(process) == program for process in self._processes(machine))

    def start_missing(self) -> None:
        """Start etcd and Patroni where they do not run."""
        for name in ETCDS:
            if not self.is_running(name, ETCD):
                self.start_etcd(name)
        for name in DATABASES:
            if not self.is_running(name, PATRONI):
                self.start_patroni(name)

    def control(self, *arguments: str) -> str:
        """Run ``patronictl`` on a machine with a database; return its output."""
        place = self._place(DATABASES[0])
        done = subprocess.run(
            [
                *self.network.within(DATABASES[0]),
                str(self._programs.patroni / "patronictl"),
                "-c",
                str(place / "patroni.yml"),
                *arguments,
            ],
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **self._secrets},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"patronictl {arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    def switch_over(self) -> None:
        """Move the primary to the synchronous standby, in order."""
        self.control("switchover", _SCOPE, "--force")

    def restart(self, machine: str) -> None:
        """Restart PostgreSQL on a machine, in order."""
        self.control("restart", _SCOPE, machine, "--force")

    def stop(self) -> None:
        """Kill everything; the data is thrown away."""
        for name in (*DATABASES, *ETCDS):
            self.signal(name, signal.SIGKILL)
        for process in self._started:
            process.kill()
            process.wait()

    # State

    def members(self) -> list[dict[str, Any]]:
        """Return the members as Patroni on any machine reports them; nothing if none does."""
        for name in DATABASES:
            url = f"https://{self.network.address(name)}:{_API_PORT}/cluster"
            with (
                contextlib.suppress(OSError, ValueError),
                urllib.request.urlopen(
                    url, timeout=_REQUEST_TIMEOUT, context=self._context
                ) as answer,
            ):
                members: list[dict[str, Any]] = json.load(answer)["members"]
                return members
        return []

    def roles(self) -> dict[str, str]:
        """Return the role of each member that works: ``leader``, and ``sync_standby`` or
        ``replica`` that streams.
        """
        return {
            member["name"]: member["role"]
            for member in self.members()
            if member["state"] == ("running" if member["role"] == "leader" else "streaming")
        }

    def primary(self) -> str:
        """Return the machine that holds the lease. Raises `TimeoutError`."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            for name, role in self.roles().items():
                if role == "leader":
                    return name
            time.sleep(_POLL)
        raise TimeoutError("no machine holds the lease")

    def until_replaced(self, primary: str, timeout: float) -> str:
        """Wait until another machine holds the lease; return it, or the same one if there is none
        in time.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for name, role in self.roles().items():
                if role == "leader" and name != primary:
                    return name
            time.sleep(_POLL)
        return primary

    def until_whole(self) -> None:
        """Wait for a primary, a synchronous standby and another standby. Raises `TimeoutError`."""
        deadline = time.monotonic() + _TIMEOUT
        while sorted(self.roles().values()) != ["leader", "replica", "sync_standby"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the members are {self.members()}")
            time.sleep(_POLL)

    def socket_conninfo(self, machine: str, database: str = DATABASE) -> str:
        """Return a superuser's connection string for a machine's socket, which no network failure
        affects.
        """
        return make_conninfo(
            host=str(self._place(machine) / "run"),
            user="postgres",
            password=self.password("PATRONI_SUPERUSER"),
            dbname=database,
            connect_timeout=2,
        )

    def newest_primary(self) -> str:
        """Return the machine whose server accepts writes on the highest timeline. Raises
        `TimeoutError`.
        """
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            timelines = {name: self._timeline(name) for name in DATABASES}
            newest = max(timelines, key=lambda name: timelines[name])
            if timelines[newest]:
                return newest
            time.sleep(_POLL)
        raise TimeoutError("no server accepts writes")

    def _timeline(self, machine: str) -> int:
        """Return the timeline that a server writes to; 0 if it does not."""
        try:
            with psycopg.connect(self.socket_conninfo(machine)) as connection:
                [(timeline,)] = connection.execute(_TIMELINE)
                return int(timeline)
        except psycopg.Error:
            return 0

    # Ways to connect

    def through_proxy(self) -> str:
        """Return the address of the primary for a machine on which HAProxy runs."""
        return (
            f"postgresql://{PRIMARY_NAME}:{PROXY_PORT}/{DATABASE}?hostaddr=127.0.0.1&target_session_attrs=read-write"
            f"&sslmode=verify-full&sslrootcert={self.certificate_authority}"
        )

    def through_hosts(self, order: Sequence[str] = DATABASES) -> str:
        """Return the address that names all hosts, in an order."""
        hosts = ",".join(f"{self.network.address(name)}:5432" for name in order)
        return f"postgresql://{hosts}/{DATABASE}?sslmode=verify-full&sslrootcert={self.certificate_authority}"

    def start_proxy(self, machine: str) -> None:
        """Start HAProxy on a machine."""
        changes = {
            f"{_EXAMPLE_ADDRESS}{name[-1]}:": f"{self.network.address(name)}:" for name in DATABASES
        }
        changes["/etc/haproxy/database-ca.crt"] = str(self.certificate_authority)
        file = self._folder / f"{machine}-haproxy.cfg"
        file.write_text(example("patroni/haproxy.cfg", changes))
        self._run(
            [*self.network.within(machine), self._programs.haproxy, "-db", "-f", str(file)],
            {},
            file.with_suffix(".log"),
        )


def with_login(address: str, login: str, password: str) -> str:
    """Return an address with a login."""
    return address.replace("://", f"://{login}:{password}@", 1)


def _read_variables(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def _program(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
