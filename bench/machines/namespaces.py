"""Network namespaces of Linux, as iproute2 names them."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_FOLDER: Final = Path("/run/netns")
_NETWORK: Final = 0x40000000
_OWN: Final = "/proc/thread-self/ns/net"


def within(namespace: str) -> list[str]:
    """What a command has to begin with to be run in a namespace."""
    return ["ip", "netns", "exec", namespace]


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """This thread is in the namespace, and so is whatever it starts."""
    own = os.open(_OWN, os.O_RDONLY)
    try:
        _enter(_FOLDER / namespace)
        yield
        _set(own)
    finally:
        os.close(own)


@contextlib.contextmanager
def made(names: Sequence[str]) -> Iterator[None]:
    """New namespaces of these names. At the end their processes are killed, and they are gone."""
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            if (_FOLDER / name).exists():
                for pid in ip("netns", "pids", name).split():
                    if int(pid) != os.getpid():
                        _kill(int(pid))
                ip("netns", "delete", name)


def ip(*arguments: str) -> str:
    """What iproute2 says."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _enter(path: Path) -> None:
    place = os.open(path, os.O_RDONLY)
    try:
        _set(place)
    finally:
        os.close(place)


def _set(place: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(place, _NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
