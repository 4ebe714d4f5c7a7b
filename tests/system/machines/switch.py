"""The switch between the machines: ``python -m tests.system.machines.switch NAMESPACE ...``.

It is a program instead of the kernel's bridge, because it can cut links with no kernel module but
the one for TAP devices. It reads which links are cut as lines of JSON, answers each with an empty
line, and ends with its input.
"""

import contextlib
import fcntl
import os
import selectors
import struct
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from tests.system.machines.network import DEVICE, CutLinks, entered

_TUNSETIFF: Final = 0x400454CA
_TAP_WITHOUT_HEADERS: Final = 0x0002 | 0x1000
_LARGEST: Final = 2048
_FRAMES_AT_ONCE: Final = 64
_MULTICAST: Final = 1


class Switch:
    """Forwards frames between TAP devices."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        self._ports = [_create_device(namespace) for namespace in namespaces]
        self._port_of: dict[bytes, int] = {}
        self._cut: set[tuple[int, int]] = set()

    def run(self) -> None:
        """Forward until the input ends."""
        with selectors.DefaultSelector() as selector:
            for number, port in enumerate(self._ports):
                selector.register(port, selectors.EVENT_READ, number)
            selector.register(sys.stdin, selectors.EVENT_READ, None)
            while True:
                for key, _ in selector.select():
                    if key.data is not None:
                        self._receive(key.data)
                    elif not self._follow(sys.stdin.readline()):
                        return

    def _follow(self, line: str) -> bool:
        if not line:
            return False
        cut = msgspec.json.decode(line, type=CutLinks)
        self._cut = {*cut, *((other, one) for one, other in cut)}
        print(flush=True)  # noqa: T201
        return True

    def _receive(self, source: int) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = os.read(self._ports[source], _LARGEST)
            except OSError:
                return
            self._port_of[frame[6:12]] = source
            target = None if frame[0] & _MULTICAST else self._port_of.get(frame[:6])
            for each in range(len(self._ports)) if target is None else (target,):
                if each != source and (source, each) not in self._cut:
                    self._forward(each, frame)

    def _forward(self, target: int, frame: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._ports[target], frame)


def _create_device(namespace: str) -> int:
    """Create a machine's device and return its other end; both end with this process."""
    with entered(namespace):
        port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _TAP_WITHOUT_HEADERS))
    return port


if __name__ == "__main__":
    switch = Switch(sys.argv[1:])
    print(flush=True)  # noqa: T201
    switch.run()
