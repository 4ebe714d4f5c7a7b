"""A primary and its standbys, each on a machine of its own or all on this one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.support.database_server import DatabaseServer, Machine

_SUPERUSER: Final = "postgres"
_STREAMING: Final = "SELECT count(*) = {} FROM pg_stat_replication WHERE state = 'streaming'"


class ReplicatedDatabase:
    """PostgreSQL servers by name, of which one is the primary and all others follow it directly.
    Those without a machine are on this one.

    `pg_stat_replication` shows each standby by its name.
    """

    def __init__(
        self, folder: Path, machines: Mapping[str, Machine | None], options: Sequence[str]
    ) -> None:
        self.servers: dict[str, DatabaseServer] = {}
        for name, machine in machines.items():
            (folder / name).mkdir()
            own = (*options, f"cluster_name={name}")
            self.servers[name] = DatabaseServer(folder / name, own, machine=machine)
        self.primary_name = next(iter(machines))

    @property
    def primary(self) -> DatabaseServer:
        """The server that accepts writes."""
        return self.servers[self.primary_name]

    @property
    def standby_names(self) -> list[str]:
        """The machines of the standbys."""
        return [name for name in self.servers if name != self.primary_name]

    @property
    def conninfo(self) -> str:
        """The connection string for whatever server is the primary."""
        return f"{self.hosts(list(self.servers))} target_session_attrs=read-write"

    def hosts(self, names: Sequence[str]) -> str:
        """Return a connection string of these machines, in this order."""
        hosts = ",".join(self.servers[name].host for name in names)
        return f"host={hosts} user={_SUPERUSER} dbname=postgres"

    def start(self) -> None:
        """Make and start all servers."""
        self.primary.initialise()
        self.primary.start()
        for name in self.standby_names:
            self._join(name)
        self.until_whole()

    def until_whole(self) -> None:
        """Wait until every standby streams from the primary. Raises `TimeoutError`."""
        self.primary.until(_STREAMING.format(len(self.standby_names)))

    def process(self, name: str, title: str) -> psutil.Process | None:
        """Find PostgreSQL's process of a machine that has this word in its title, such as
        ``walreceiver``; None if there is none now.
        """
        server = self.servers[name].process
        assert server is not None
        for child in psutil.Process(server.pid).children():
            if title in " ".join(child.cmdline()):
                return child
        return None

    def switch_over(self, successor: str) -> None:
        """Stop the primary in order, so that standbys have all of its log; promote one of them, let
        the others follow it, and bring the former primary back as its standby.
        """
        former = self.primary_name
        self.primary.stop()
        self.servers[successor].promote()
        self.primary_name = successor
        for name in self.standby_names:
            if name != former:
                self._redirect(name)
        self._join(former)
        self.until_whole()

    def _join(self, name: str) -> None:
        server = self.servers[name]
        server.follow(self.primary)
        server.start()

    def _redirect(self, name: str) -> None:
        address = f"host={self.primary.host} user={_SUPERUSER}"
        self.servers[name].rows(f"ALTER SYSTEM SET primary_conninfo = '{address}'")
        self.servers[name].rows("SELECT pg_reload_conf()")

    def stop(self) -> None:
        """Stop all servers."""
        for name in self.standby_names:
            self.servers[name].stop()
        self.primary.stop()
