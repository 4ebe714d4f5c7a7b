"""Machines as network namespaces of Linux, each with an address, behind one switch."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

NETWORK: Final = "10.177.0"
DEVICE: Final = "eth0"
_NAMESPACES: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000
_OWN_NAMESPACE: Final = "/proc/thread-self/ns/net"


CutLinks = list[tuple[int, int]]
"""Pairs of machines that do not reach each other; machines are numbers in the order of the switch's
arguments.
"""


class Network:
    """The machines, and the links that are cut between them."""

    def __init__(self, machines: Sequence[str], switch: subprocess.Popen[str], prefix: str) -> None:
        self.machines = machines
        self._switch = switch
        self._prefix = prefix
        self._cut: set[frozenset[str]] = set()

    def address(self, machine: str) -> str:
        """Return a machine's address."""
        return f"{NETWORK}.{self.machines.index(machine) + 1}"

    def namespace(self, machine: str) -> str:
        """Return the name of a machine's namespace."""
        return self._prefix + machine

    def within(self, machine: str) -> list[str]:
        """Return the prefix of a command to run on a machine."""
        return ["ip", "netns", "exec", self.namespace(machine)]

    def cut(self, *links: tuple[str, str]) -> None:
        """Drop all packets between the two machines of each link."""
        self._cut |= {frozenset(link) for link in links}
        self._order()

    def isolate(self, machine: str) -> None:
        """Drop all packets from and to a machine."""
        self.cut(*((machine, other) for other in self.machines if other != machine))

    def heal(self) -> None:
        """Let every machine reach every other again."""
        self._cut.clear()
        self._order()

    def _order(self) -> None:
        number = self.machines.index
        cut = [(number(one), number(other)) for one, other in self._cut]
        assert self._switch.stdin is not None
        self._switch.stdin.write(f"{msgspec.json.encode(cut).decode()}\n")
        self._switch.stdin.flush()
        _await_line(self._switch)


@contextlib.contextmanager
def network(machines: Sequence[str]) -> Iterator[Network]:
    """Create machines that reach only each other; this thread runs on the first of them."""
    prefix = f"tenantry-{os.getpid()}-"
    names = [prefix + machine for machine in machines]
    with _created(names), _switch(names) as switch:
        created = Network(machines, switch, prefix)
        for machine, name in zip(machines, names, strict=True):
            ip("-n", name, "address", "add", f"{created.address(machine)}/24", "dev", DEVICE)
            ip("-n", name, "link", "set", DEVICE, "up")
        with entered(names[0]):
            yield created


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Move this thread, and the processes that it starts, into a namespace."""
    own = os.open(_OWN_NAMESPACE, os.O_RDONLY)
    try:
        target = os.open(_NAMESPACES / namespace, os.O_RDONLY)
        try:
            _set_namespace(target)
        finally:
            os.close(target)
        yield
        _set_namespace(own)
    finally:
        os.close(own)


def ip(*arguments: str) -> str:
    """Run iproute2 and return its output."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def _created(names: Sequence[str]) -> Iterator[None]:
    """Create namespaces; at the end kill their processes and delete them."""
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            if (_NAMESPACES / name).exists():
                for pid in ip("netns", "pids", name).split():
                    if int(pid) != os.getpid():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
                ip("netns", "delete", name)


@contextlib.contextmanager
def _switch(names: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.system.machines.switch", *names]
    # a separate session, so that Ctrl-C does not end it before the programs that it connects
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        _await_line(process)
        yield process


def _await_line(switch: subprocess.Popen[str]) -> None:
    assert switch.stdout is not None
    if not switch.stdout.readline():
        raise RuntimeError("the switch has ended")


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
