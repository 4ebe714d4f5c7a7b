"""The accept loop."""

import asyncio
import itertools
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from typing import Any, Final

import pytest
import uvicorn

from tenantry.server import accept_loop as listening
from tenantry.server import shutdown
from tenantry.server.accept_loop import MAX_ACCEPTS_PER_TURN, AcceptLoop, ListeningSocket
from tenantry.server.connection_balance import NOT_ACCEPTING, SECONDS_AHEAD, ConnectionBalance
from tenantry.server.protocol import HttpProtocol
from tests.support.http_line import Line
from tests.support.serving import url_of

CLIENTS = 2 * MAX_ACCEPTS_PER_TURN


class Arrivals:
    """Counts the accepted connections, and the event loop's turns until the expected number is
    reached.
    """

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
        server = await asyncio.get_running_loop().create_server(
            arrivals.protocol, sock=bound, backlog=CLIENTS
        )
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
            # as usual, without a given socket
            other = await loop.create_server(arrivals.protocol, "127.0.0.1", 0)
            with socket.create_connection(other.sockets[0].getsockname()):
                await arrivals.all.wait()
            other.close()
        assert arrivals.number == 1

    with bound_socket() as bound:
        run(main(bound))


def test_last_process_accepts_queued_connections_and_rejects_new_ones() -> None:
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals(CLIENTS)
        server = await asyncio.get_running_loop().create_server(
            arrivals.protocol, sock=bound, backlog=CLIENTS
        )
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


def test_one_of_several_processes_accepts_queued_connections_and_leaves_new_ones_to_the_others() -> (
    None
):
    async def main(bound: socket.socket) -> None:
        arrivals = Arrivals(CLIENTS)
        server = await asyncio.get_running_loop().create_server(
            arrivals.protocol, sock=bound, backlog=CLIENTS
        )
        clients = [socket.create_connection(bound.getsockname()) for _ in range(CLIENTS)]
        assert isinstance(server, ListeningSocket)
        await server.drain(is_last=False)
        with socket.create_connection(bound.getsockname()):
            assert arrivals.number == CLIENTS
        for client in clients:
            client.close()

    with bound_socket() as bound:
        run(main(bound))


YIELD_SECONDS: Final = 0.03
"""Long enough for the others to have their turns of the one event loop on a busy machine."""


class Processes:
    """Several processes that listen on one socket, in one event loop; they keep ``CLIENTS``
    connections.
    """

    def __init__(self, bound: socket.socket, number: int, others: int = 0) -> None:
        """Besides ``number`` processes, ``others`` have no connections and accept none."""
        self.connections = [0] * number
        self.counts = [0] * (number + others)
        self._sockets = [bound.dup() for _ in range(number)]
        self._all = asyncio.Event()
        self.servers = [self._listen(own, each) for own, each in enumerate(self._sockets)]

    async def accept_all(self, bound: socket.socket) -> None:
        clients = [socket.create_connection(bound.getsockname()) for _ in range(CLIENTS)]
        await self._all.wait()
        for server in self.servers:
            server.close()
        for each in (*clients, *self._sockets):
            each.close()

    def _listen(self, own: int, bound: socket.socket) -> ListeningSocket:
        balance = ConnectionBalance(self.counts, own, lambda: self.connections[own])
        return ListeningSocket(
            asyncio.get_running_loop(),
            lambda: self._protocol(own),
            bound,
            CLIENTS,
            balance,
            YIELD_SECONDS,
        )

    def _protocol(self, own: int) -> asyncio.Protocol:
        self.connections[own] += 1
        if sum(self.connections) == CLIENTS:
            self._all.set()
        return asyncio.Protocol()


def test_processes_share_a_burst_of_connections() -> None:
    async def main(bound: socket.socket) -> None:
        processes = Processes(bound, 3)
        await processes.accept_all(bound)
        mean = CLIENTS / 3
        assert all(abs(number - mean) <= 0.2 * mean for number in processes.connections), (
            processes.connections
        )

    with bound_socket() as bound:
        run(main(bound))


def test_connections_that_a_stopped_process_does_not_accept_are_accepted_by_another() -> None:
    async def main(bound: socket.socket) -> None:
        processes = Processes(bound, 1, others=1)
        await processes.accept_all(bound)
        assert processes.connections == [CLIENTS]

    with bound_socket() as bound:
        run(main(bound))


def test_process_that_drains_attracts_no_connections() -> None:
    async def main(bound: socket.socket) -> None:
        processes = Processes(bound, 2)
        processes.servers[0].leave_balance()
        assert processes.counts == [NOT_ACCEPTING, 0]
        await processes.accept_all(bound)
        assert processes.counts[0] == NOT_ACCEPTING

    with bound_socket() as bound:
        run(main(bound))


def test_pending_responses_of_surplus_connections_are_their_last() -> None:
    async def main(bound: socket.socket) -> None:
        pending, release = asyncio.Semaphore(0), asyncio.Event()

        async def app(_scope: object, _receive: object, send: Any) -> None:
            pending.release()
            await release.wait()
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", b"0")],
                }
            )
            await send({"type": "http.response.body"})

        config = uvicorn.Config(app, http=HttpProtocol, lifespan="off", log_config=None)
        config.load()
        clock = itertools.count()  # a second at each look
        siblings = shutdown.Siblings(os.getppid(), [0, 0], 0)
        server = shutdown.GracefulServer(config, 0, siblings, lambda: next(clock))
        server.lifespan = config.lifespan_class(config)
        await server.startup([bound])
        lines = [await Line.to(url_of(bound)) for _ in range(6)]
        for line in lines:
            await line.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await pending.acquire()
        for second in range(SECONDS_AHEAD + 1):
            await server.on_tick(10 * second)
        release.set()
        closed = [(await line.answer())[1].get("connection") for line in lines]
        assert sorted(closed, key=str) == [None] * 3 + ["close"] * 3
        for line in lines:
            line.close()
        await server.shutdown()

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
            assert (
                record.getMessage().startswith("accepting connections failed"),
                arrivals.number,
            ) == (True, 0)
            await arrivals.all.wait()
        listening.logger.removeHandler(handler)
        server.close()

    with bound_socket() as bound:
        run(main(bound))
