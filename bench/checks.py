"""Whether a contestant really does the work: asked before it is measured, and once more afterwards."""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from bench import events
from bench.contestant import Contestant, Job, Server, World

PROJECTS: Final = 20
REVOCATION_BOUND: Final = 60.0
"""Seconds that a revoked credential is tried for."""
_REFUSALS_IN_A_ROW: Final = 8
"""As many say that every process refuses."""
_PAUSE: Final = 0.05
_PATIENCE: Final = 30
_CLIENTS: Final = 16
_REFUSED: Final = (401, 403)


class CheckError(Exception):
    """A contestant does not do what it is measured for; the message says what it did."""


class Answer(NamedTuple):
    """An answer."""

    status: int
    body: bytes


class Client:
    """A connection to a server, kept open."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_PATIENCE)

    def deliver(self, body: bytes, signature: str) -> Answer:
        """Send an event."""
        headers = {"Content-Type": "application/json; charset=utf-8", self._server.header: signature}
        return self._ask("POST", body, headers)

    def use(self, credential: str) -> Answer:
        """Send a request with a whole value of the server's header."""
        return self._ask("GET", None, {self._server.header: credential})

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _ask(self, method: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        self._connection.request(method, self._server.path, body, headers)
        answer = self._connection.getresponse()
        return Answer(answer.status, answer.read())


class Taken(NamedTuple):
    """How a contestant takes in events."""

    said: str
    """In one line."""
    plan_before: str
    keeps: bool
    """Whether it keeps every event, so that they can be counted; else only what the newest has changed is there."""


def check_events(contestant: Contestant, world: World, server: Server, created: int) -> Taken:
    """Send tenant 0 an event of this second, the same again, a forged one, and another of two seconds later.

    Raises `CheckError`.
    """
    client = Client(server)
    body = events.compose(0, "evt_check_0", created)
    forged = events.compose(0, "evt_check_forged", created + 1)
    stored, plan = contestant.events_stored(world), contestant.plan_of(world, 0)
    first = client.deliver(body, events.sign(body, world.secret))
    _expect(first.status == 200, f"an event is answered with {first.status}: {_text(first)}")
    _await(lambda: contestant.events_stored(world) == stored + 1, "an event was answered with 200 and is not stored")
    changed = contestant.plan_of(world, 0)
    _expect(changed != plan, f"an event left the plan {plan!r}")
    again = client.deliver(body, events.sign(body, world.secret))
    _expect(200 <= again.status < 300, f"the same event is answered with {again.status}: {_text(again)}")
    refused = client.deliver(forged, events.sign(forged, "whsec_another"))
    _expect(400 <= refused.status < 500, f"a forged event is answered with {refused.status}")
    _expect(contestant.events_stored(world) == stored + 1, "the same event, or a forged one, was stored")
    another = events.compose(0, "evt_check_1", created + 2)
    _expect(client.deliver(another, events.sign(another, world.secret)).status == 200, "a second event is refused")
    client.close()
    keeps = contestant.events_stored(world) == stored + 2
    said = f"plan {plan!r} -> {changed!r}, again {again.status} and not stored, forged {refused.status}"
    return Taken(said if keeps else f"{said}; events themselves are not kept", plan, keeps)


def check_forged(server: Server, world: World, created: int) -> str:
    """What can be checked without a database: an event is taken, a forged one is not. Raises `CheckError`."""
    client = Client(server)
    body = events.compose(0, "evt_check_0", created)
    taken = client.deliver(body, events.sign(body, world.secret))
    refused = client.deliver(body, events.sign(body, "whsec_another"))
    client.close()
    _expect(taken.status == 200, f"an event is answered with {taken.status}")
    return f"forged {refused.status}"


def check_list(job: Job, server: Server) -> str:
    """Send credentials, one of them wrong; what it did, in one line. Raises `CheckError`."""
    client = Client(server)
    for credential in (server.credentials[0], server.credentials[len(server.credentials) // 2]):
        answer = client.use(credential)
        _expect(answer.status == 200, f"a credential is answered with {answer.status}: {_text(answer)}")
        if job is Job.LIST:
            found = _count(answer.body)
            _expect(found == PROJECTS, f"the list has {found} projects")
    wrong = client.use(_spoiled(server.credentials[0]))
    client.close()
    _expect(wrong.status in _REFUSED, f"a wrong credential is answered with {wrong.status}")
    return f"{PROJECTS} projects, wrong credential {wrong.status}" if job is Job.LIST else f"wrong {wrong.status}"


class Lateness(NamedTuple):
    """How long a revoked credential was let in."""

    seconds: float
    status: int
    """Of the refusal; 0 where there was none within the bound."""


def check_revocation(contestant: Contestant, world: World, server: Server, bound: float = REVOCATION_BOUND) -> Lateness:
    """Revoke the last credential and use it until every process refuses it, or for ``bound`` seconds.

    Raises `CheckError`.
    """
    number = len(server.credentials) - 1
    credential = server.credentials[number]
    for _ in range(_REFUSALS_IN_A_ROW):
        _expect(_use_once(server, credential).status == 200, "a credential that is to be revoked does not work")
    contestant.revoke(world, server, number)
    began = time.monotonic()
    let_in, row, status = 0.0, 0, 0
    while row < _REFUSALS_IN_A_ROW:
        asked = time.monotonic()
        if asked - began > bound:
            return Lateness(let_in, 0)
        answer = _use_once(server, credential)
        if answer.status in _REFUSED:
            row, status = row + 1, answer.status
            continue
        _expect(answer.status == 200, f"a revoked credential is answered with {answer.status}")
        let_in, row = asked - began, 0
        time.sleep(_PAUSE)
    return Lateness(let_in, status)


def deliver_all(
    server: Server, world: World, run: str, first: int, count: int, price: str = events.PRICE
) -> Counter[int]:
    """Send distinct events, 16 at a time, and wait for every answer; the statuses."""
    stamp = int(time.time())
    local = threading.local()
    opened: list[Client] = []

    def deliver(position: int) -> int:
        if not hasattr(local, "client"):
            local.client = Client(server)
            opened.append(local.client)
        tenant, created = position % world.tenants, first + position // world.tenants
        body = events.compose(tenant, f"evt_{run}_{position:08d}", created, price)
        status: int = local.client.deliver(body, events.sign(body, world.secret, stamp)).status
        return status

    with ThreadPoolExecutor(_CLIENTS) as pool:
        statuses = Counter(pool.map(deliver, range(count)))
    for client in opened:
        client.close()
    return statuses


def _use_once(server: Server, credential: str) -> Answer:
    """On a connection of its own, so that another process may answer each time."""
    client = Client(server)
    try:
        return client.use(credential)
    finally:
        client.close()


def _await(is_so: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + 5
    while not is_so():
        _expect(time.monotonic() < until, otherwise)
        time.sleep(_PAUSE)


def _expect(is_so: bool, otherwise: str) -> None:  # noqa: FBT001  # reads as an assertion
    if not is_so:
        raise CheckError(otherwise)


def _count(body: bytes) -> int:
    """How many objects a list has, whichever way it is wrapped."""
    document = json.loads(body)
    if isinstance(document, list):
        return len(document)
    lists: Sequence[Any] = [value for value in document.values() if isinstance(value, list)]
    return len(lists[0]) if lists else 0


def _spoiled(credential: str) -> str:
    """Another credential of the same form."""
    middle = len(credential) * 3 // 4
    other = "A" if credential[middle] != "A" else "B"
    return credential[:middle] + other + credential[middle + 1 :]


def _text(answer: Answer) -> str:
    return answer.body[:300].decode(errors="replace")
