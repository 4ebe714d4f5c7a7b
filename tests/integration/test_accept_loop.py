"""The accept loop."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from typing import Any

import pytest

from tenantry.server import accept_loop as listening
from tenantry.server.accept_loop import MAX_ACCEPTS_PER_TURN, AcceptLoop, ListeningSocket

CLIENTS = 2 * MAX_ACCEPTS_PER_TURN


class Arrivals:
    """Counts the accepted connections, and the event loop's turns until the expected number is reached."""

    def __init__(self, wanted: int = 1) -> None:
        self.number = 0
        self.turns = 0
        self.all = asyncio.Event()
        self._wanted = wanted
        self._turn()

    def _turn(self) -> None:
        self.turns += 1
        if not self.all.is_set():
            asyncio.get_running_loop().call_soon(self._turn)

    def protocol(self) -> asyncio.Protocol:
        arrivals = self

        class Counted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.close()
                arrivals.number += 1
                if arrivals.number == arrivals._wanted:
                    arrivals.all.set()

        return Counted()


@contextmanager
def bound_socket() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=AcceptLoop) as runner:
        runner.run(main)


def test_burst_of_connections_is_accepted_within_a_few_turns() -> None:
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals(CLIENTS)
        server = await asyncio.get_running_loop().create_server(arrivals.protocol, sock=bound, backlog=CLIENTS)
        clients = [socket.create_connection(bound.getsockname()) for _ in range(CLIENTS)]
        await arrivals.all.wait()
        assert arrivals.turns < CLIENTS / 4
        server.close()
        await server.wait_closed()
        for client in clients:
            client.close()

    with bound_socket() as bound:
        run(main(bound))


def test_closed_socket_accepts_no_connection() -> None:
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(arrivals.protocol, sock=bound)
        server.close()
        with socket.create_connection(bound.getsockname()):
            other = await loop.create_server(arrivals.protocol, "127.0.0.1", 0)  # as usual, without a given socket
            with socket.create_connection(other.sockets[0].getsockname()):
                await arrivals.all.wait()
            other.close()
        assert arrivals.number == 1

    with bound_socket() as bound:
        run(main(bound))


def test_last_process_accepts_queued_connections_and_rejects_new_ones() -> None:
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals(CLIENTS)
        server = await asyncio.get_running_loop().create_server(arrivals.protocol, sock=bound, backlog=CLIENTS)
        clients = [socket.create_connection(bound.getsockname()) for _ in range(CLIENTS)]
        assert isinstance(server, ListeningSocket)
        draining = asyncio.create_task(server.drain(is_last=True))
        await arrivals.all.wait()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(bound.getsockname())
        await draining
        for client in clients:
            client.close()

    with bound_socket() as bound:
        run(main(bound))


def test_one_of_several_processes_accepts_queued_connections_and_leaves_new_ones_to_the_others() -> None:
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals(CLIENTS)
        server = await asyncio.get_running_loop().create_server(arrivals.protocol, sock=bound, backlog=CLIENTS)
        clients = [socket.create_connection(bound.getsockname()) for _ in range(CLIENTS)]
        assert isinstance(server, ListeningSocket)
        await server.drain(is_last=False)
        with socket.create_connection(bound.getsockname()):
            assert arrivals.number == CLIENTS
        for client in clients:
            client.close()

    with bound_socket() as bound:
        run(main(bound))


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


def test_accepting_resumes_when_file_descriptors_are_available() -> None:
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals()
        logged: asyncio.Queue[logging.LogRecord] = asyncio.Queue()
        handler = QueueHandler(logged)
        listening.logger.addHandler(handler)
        server = await asyncio.get_running_loop().create_server(arrivals.protocol, sock=bound)
        with socket.create_connection(bound.getsockname()):
            with no_descriptors():
                record = await logged.get()
            assert (record.getMessage().startswith("accepting connections failed"), arrivals.number) == (True, 0)
            await arrivals.all.wait()
        listening.logger.removeHandler(handler)
        server.close()

    with bound_socket() as bound:
        run(main(bound))
