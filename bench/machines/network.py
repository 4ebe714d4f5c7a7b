"""Machines with addresses of their own behind one switch."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from bench.machines import namespaces
from bench.machines.namespaces import ip
from bench.machines.switch import DEVICE, Orders, Slowness

NETWORK: Final = "10.177.0"


class Network:
    """The machines, and what is wrong between them."""

    def __init__(self, machines: Sequence[str], switch: subprocess.Popen[str], prefix: str) -> None:
        self.machines = machines
        self._switch = switch
        self._prefix = prefix
        self._cut: set[frozenset[str]] = set()
        self._slow: dict[str, Slowness] = {}

    def address(self, machine: str) -> str:
        """Its only address, but for its loopback."""
        return f"{NETWORK}.{self.machines.index(machine) + 1}"

    def within(self, machine: str) -> list[str]:
        """What a command has to begin with to be run on a machine."""
        return namespaces.within(self._prefix + machine)

    def cut(self, *ways: tuple[str, str]) -> None:
        """Let nothing pass any more between the two machines of each of the ways: packets are lost without a word."""
        self._cut |= {frozenset(way) for way in ways}
        self._tell()

    def isolate(self, machine: str) -> None:
        """Let nothing pass from or to a machine."""
        self.cut(*((machine, other) for other in self.machines if other != machine))

    def slow(self, machine: str, slowness: Slowness) -> None:
        """Make the link of a machine slow."""
        self._slow[machine] = slowness
        self._tell()

    def heal(self) -> None:
        """Let everything pass."""
        self._cut.clear()
        self._slow.clear()
        self._tell()

    def _tell(self) -> None:
        number = self.machines.index
        cut = [tuple(sorted(number(machine) for machine in way)) for way in self._cut]
        orders = Orders([(pair[0], pair[1]) for pair in cut], {number(one): slow for one, slow in self._slow.items()})
        assert self._switch.stdin is not None
        self._switch.stdin.write(msgspec.json.encode(orders).decode() + "\n")
        self._switch.stdin.flush()
        _await(self._switch)


@contextlib.contextmanager
def network(machines: Sequence[str]) -> Iterator[Network]:
    """Machines that reach each other, and nothing else. This process is on the first of them."""
    prefix = f"tenantry-{os.getpid()}-"
    names = [prefix + machine for machine in machines]
    with namespaces.made(names), _switch(names) as switch:
        one = Network(machines, switch, prefix)
        for machine, name in zip(machines, names, strict=True):
            ip("-n", name, "address", "add", f"{one.address(machine)}/24", "dev", DEVICE)
            ip("-n", name, "link", "set", DEVICE, "up")
        with namespaces.entered(names[0]):
            yield one


@contextlib.contextmanager
def _switch(names: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.machines.switch", *names]
    # in a session of its own, so that Ctrl-C does not end it before whoever is connected by it
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        _await(process)
        yield process


def _await(switch: subprocess.Popen[str]) -> None:
    assert switch.stdout is not None
    if not switch.stdout.readline():
        raise RuntimeError("the switch has ended")
