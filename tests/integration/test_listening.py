"""Taking in new connections."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tenantry.http import listening
from tenantry.http.listening import MOST_IN_A_TURN, Loop

CLIENTS = 2 * MOST_IN_A_TURN


class Arrivals:
    """The connections that were taken in."""

    def __init__(self) -> None:
        self.number = 0

    def protocol(self) -> asyncio.Protocol:
        arrivals = self

        class Counted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                arrivals.number += 1
                transport.close()

        return Counted()


async def turns_until(arrivals: Arrivals, number: int) -> int:
    turns = 0
    while arrivals.number < number:
        turns += 1
        await asyncio.sleep(0)
    return turns


@contextmanager
def bound_socket() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main)


def test_a_burst_is_taken_in_within_a_few_turns() -> None:
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals()
        server = await asyncio.get_running_loop().create_server(arrivals.protocol, sock=bound, backlog=CLIENTS)
        clients = [socket.create_connection(bound.getsockname()) for _ in range(CLIENTS)]
        turns = await turns_until(arrivals, CLIENTS)
        assert turns < CLIENTS / 4
        server.close()
        await server.wait_closed()
        for client in clients:
            client.close()

    with bound_socket() as bound:
        run(main(bound))


def test_what_is_closed_takes_in_no_more() -> None:
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(arrivals.protocol, sock=bound)
        server.close()
        with socket.create_connection(bound.getsockname()):
            other = await loop.create_server(arrivals.protocol, "127.0.0.1", 0)  # as usual, without a socket of ours
            with socket.create_connection(other.sockets[0].getsockname()):
                await turns_until(arrivals, 1)
            other.close()
        assert arrivals.number == 1

    with bound_socket() as bound:
        run(main(bound))


class Told(logging.Handler):
    """Notes that something was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        self.event.set()


@contextmanager
def no_descriptors() -> Iterator[None]:
    lowest = os.dup(0)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_it_waits_for_some(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()

    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals()
        server = await asyncio.get_running_loop().create_server(arrivals.protocol, sock=bound)
        with socket.create_connection(bound.getsockname()):
            with no_descriptors():
                await told.event.wait()
            assert arrivals.number == 0
            await turns_until(arrivals, 1)
        server.close()

    listening.logger.addHandler(told)
    try:
        with bound_socket() as bound:
            run(main(bound))
    finally:
        listening.logger.removeHandler(told)
    assert "no connection can be taken in" in caplog.text
