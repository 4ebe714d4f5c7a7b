"""Check that a contestant does the work, before it is measured and afterwards."""

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from bench import events
from bench.contestant import Contestant, Dataset, Job, Server
from bench.support import PROJECTS

REVOCATION_BOUND: Final = 60.0
"""Seconds to try a revoked credential."""
_REJECTIONS_IN_A_ROW: Final = 8
"""So many rejections in a row mean that every process rejects."""
_PAUSE: Final = 0.05
_TIMEOUT: Final = 30
_CLIENTS: Final = 16
_REJECTED: Final = (401, 403)


class CheckError(Exception):
    """A contestant does not do the work; the message says what it did instead."""


class Reply(NamedTuple):
    """A status and a body."""

    status: int
    body: bytes

    def __str__(self) -> str:
        return f"{self.status}: {self.body[:300].decode(errors='replace')}"


class ServerConnection:
    """A persistent connection to a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT)

    def deliver(self, body: bytes, signature: str) -> Reply:
        """Send an event."""
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            self._server.header: signature,
        }
        return self._send("POST", body, headers)

    def use(self, credential: str) -> Reply:
        """Send a request with this value of the server's header."""
        return self._send("GET", None, {self._server.header: credential})

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _send(self, method: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        self._connection.request(
            method, self._server.path, body, {**self._server.more_headers, **headers}
        )
        answer = self._connection.getresponse()
        return Reply(answer.status, answer.read())


class IngestCheck(NamedTuple):
    """How a contestant processes events."""

    summary: str
    plan_before: str
    keeps_events: bool
    """Whether it stores every event, or only the result of the newest."""


def check_events(
    contestant: Contestant, data: Dataset, server: Server, created: int
) -> IngestCheck:
    """Send tenant 0 an event, a duplicate, a forged event, and an event of two seconds later.
    Raises `CheckError`.
    """
    body = events.compose(0, "evt_check_0", created)
    forged = events.compose(0, "evt_check_forged", created + 1)
    another = events.compose(0, "evt_check_1", created + 2)
    stored, plan = contestant.events_stored(data), contestant.plan_of(data, 0)
    with contextlib.closing(ServerConnection(server)) as client:
        first = client.deliver(body, events.sign(body, data.secret))
        _require(first.status == 200, f"an event is answered with {first}")
        until = time.monotonic() + 5
        while contestant.events_stored(data) != stored + 1:
            _require(time.monotonic() < until, "an event was answered with 200 and is not stored")
            time.sleep(_PAUSE)
        changed = contestant.plan_of(data, 0)
        _require(changed != plan, f"an event left the plan {plan!r}")
        again = client.deliver(body, events.sign(body, data.secret))
        _require(200 <= again.status < 300, f"a duplicate event is answered with {again}")
        rejected = client.deliver(forged, events.sign(forged, "whsec_another"))
        _require(400 <= rejected.status < 500, f"a forged event is answered with {rejected}")
        _require(
            contestant.events_stored(data) == stored + 1, "a duplicate or forged event was stored"
        )
        second = client.deliver(another, events.sign(another, data.secret))
        _require(second.status == 200, f"a second event is answered with {second}")
    keeps = contestant.events_stored(data) == stored + 2
    summary = f"plan {plan!r} -> {changed!r}, duplicate {again.status} and not stored, forged {rejected.status}"
    return IngestCheck(summary if keeps else f"{summary}; stores no events", plan, keeps)


def check_forged(server: Server, data: Dataset, created: int) -> str:
    """Check what needs no database: an event is accepted; with a wrong key it may be rejected.
    Raises `CheckError`.
    """
    body = events.compose(0, "evt_check_0", created)
    with contextlib.closing(ServerConnection(server)) as client:
        accepted = client.deliver(body, events.sign(body, data.secret))
        forged = client.deliver(body, events.sign(body, "whsec_another"))
    _require(accepted.status == 200, f"an event is answered with {accepted}")
    return f"forged {forged.status}"


def check_list(job: Job, server: Server) -> str:
    """Send valid credentials and an invalid one; return the results in one line. Raises
    `CheckError`.
    """
    with contextlib.closing(ServerConnection(server)) as client:
        for credential in (server.credentials[0], server.credentials[len(server.credentials) // 2]):
            answer = client.use(credential)
            _require(answer.status == 200, f"a credential is answered with {answer}")
            if job is Job.LIST:
                found = _count(answer.body)
                _require(found == PROJECTS, f"the list has {found} projects")
        wrong = client.use(_altered(server.credentials[0]))
    _require(wrong.status in _REJECTED, f"an invalid credential is answered with {wrong}")
    return (
        f"{PROJECTS} projects, invalid credential {wrong.status}"
        if job is Job.LIST
        else f"invalid {wrong.status}"
    )


def check_revocation(contestant: Contestant, data: Dataset, server: Server) -> str:
    """Revoke the last credential and use it until every process rejects it, or for
    `REVOCATION_BOUND`.

    Return the results in one line. Raises `CheckError`.
    """
    number = len(server.credentials) - 1
    credential = server.credentials[number]
    for _ in range(_REJECTIONS_IN_A_ROW):
        _require(
            _use_once(server, credential).status == 200,
            "a credential does not work before its revocation",
        )
    contestant.revoke(data, server, number)
    began = time.monotonic()
    accepted_until, in_a_row, status = 0.0, 0, 0
    while in_a_row < _REJECTIONS_IN_A_ROW:
        elapsed = time.monotonic() - began
        if elapsed > REVOCATION_BOUND:
            return f"revoked credential accepted for all of {REVOCATION_BOUND:.0f} s"
        answer = _use_once(server, credential)
        if answer.status in _REJECTED:
            in_a_row, status = in_a_row + 1, answer.status
            continue
        _require(answer.status == 200, f"a revoked credential is answered with {answer}")
        accepted_until, in_a_row = elapsed, 0
        time.sleep(_PAUSE)
    when = f"after {accepted_until:.1f} s" if accepted_until else "immediately"
    return f"revoked credential rejected {when} with {status}"


def deliver_all(
    server: Server, data: Dataset, run: str, first: int, count: int, price: str = events.PRICE
) -> Counter[int]:
    """Send distinct events, 16 at a time, and wait for every answer; return the statuses."""
    stamp = int(time.time())
    local = threading.local()
    opened: list[ServerConnection] = []

    def deliver(position: int) -> int:
        if not hasattr(local, "client"):
            local.client = ServerConnection(server)
            opened.append(local.client)
        tenant, created = position % data.tenants, first + position // data.tenants
        body = events.compose(tenant, f"evt_{run}_{position:08d}", created, price)
        status: int = local.client.deliver(body, events.sign(body, data.secret, stamp)).status
        return status

    with ThreadPoolExecutor(_CLIENTS) as pool:
        statuses = Counter(pool.map(deliver, range(count)))
    for client in opened:
        client.close()
    return statuses


def _use_once(server: Server, credential: str) -> Reply:
    """Use a new connection, so that another process may answer each time."""
    with contextlib.closing(ServerConnection(server)) as client:
        return client.use(credential)


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001  # reads as an assertion
    if not holds:
        raise CheckError(otherwise)


def _count(body: bytes) -> int:
    """Count the objects of a list, bare or in an envelope."""
    document = json.loads(body)
    if isinstance(document, list):
        return len(document)
    lists: Sequence[Any] = [value for value in document.values() if isinstance(value, list)]
    return len(lists[0]) if lists else 0


def _altered(credential: str) -> str:
    """Return another credential of the same form."""
    middle = len(credential) * 3 // 4
    other = "A" if credential[middle] != "A" else "B"
    return credential[:middle] + other + credential[middle + 1 :]
