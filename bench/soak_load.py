"""Everything at once, against one service: events of hot tenants, lists, gateways' checks, keys that come and go, and
an operator who renames, suspends and adds tenants. Notes what every client was told.
"""

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from bench.events import sign
from bench.support import SECRET, TENANTS
from tests.support import events

HOT: Final = 10
"""Tenants that get `HOT_SHARE` of all events."""
HOT_SHARE: Final = 0.8
TWIN_SHARE: Final = 0.05
"""Of the events are sent twice at the same time, and as many once more later."""
LATE_SHARE: Final = 0.02
SUSPENDED: Final = range(TENANTS - 50, TENANTS)
"""Tenants that the operator suspends and lets go on again; no others. What their keys ask has kinds of its own."""
EVENT_CLIENTS: Final = 24
LIST_CLIENTS: Final = 8
CHECK_CLIENTS: Final = 4
NO_ANSWER: Final = 0
OK: Final = 200
CREATED: Final = 201

LOOPBACK: Final = "127.0.0.1"
_PATIENCE: Final = 15.0
_RECENT: Final = 200
_KINDS: Final = {"updated": 70, "deleted": 5, "failed": 8, "succeeded": 7, "completed": 5, "unknown": 5}
"""Of a hundred events; an unknown one is about a tenant that is made later."""
_PAUSE: Final = 0.05
_WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
LIST: Final = "/api/v1/projects"
_CHECK: Final = "/api/v1/auth/verify/projects:read"
KEYS: Final = "/api/v1/api-keys"
TENANTS_PATH: Final = "/api/v1/tenants"


class Notes:
    """What was sent, and what was answered."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        """Ids of events."""
        self.acknowledged: dict[str, float] = {}
        """Those of them that had a 200, and when they had the first, on the monotonic clock."""
        self.answers: dict[str, Counter[int]] = {}
        """How often each kind of request had each status."""
        self.longest: dict[str, float] = {}
        """Seconds that an answer of each kind took."""

    @property
    def answered(self) -> int:
        """How many requests were answered."""
        return sum(counts.total() - counts[NO_ANSWER] for counts in self.answers.values())

    def note(self, kind: str, answer: "Answer", began: float) -> None:
        """Note an answer, and when its request was sent, on the monotonic clock."""
        self.answers.setdefault(kind, Counter())[answer.status] += 1
        self.longest[kind] = max(self.longest.get(kind, 0.0), time.monotonic() - began)


class Answer(NamedTuple):
    """An answer; its status is `NO_ANSWER` where there was none in time."""

    status: int
    body: bytes = b""
    is_told: bool = False
    """Whether it says when to come again."""


class Client:
    """A connection that is kept open; its requests follow each other. A new one is made to any of the ports."""

    def __init__(
        self, ports: Sequence[int], chance: random.Random, patience: float = _PATIENCE, *, host: str = LOOPBACK
    ) -> None:
        self._host = host
        self._ports = ports
        self._chance = chance
        self._patience = patience
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, header: str, body: bytes = b"") -> Answer:
        """The answer. Where there is none in time, it connects anew."""
        try:
            async with asyncio.timeout(self._patience):
                return await self._exchange(method, path, header, body)
        except (OSError, EOFError):
            self.close()
            return Answer(NO_ANSWER)

    async def _exchange(self, method: str, path: str, header: str, body: bytes) -> Answer:
        if self._streams is not None and self._streams[0].at_eof():
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._chance.choice(self._ports))
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines if line)
        body = await reader.readexactly(int(headers.get(b"content-length", 0)))
        if headers.get(b"connection") == b"close":
            self.close()
        return Answer(int(first.split()[1]), body, b"retry-after" in headers)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Load:
    """Sends until told to stop."""

    def __init__(
        self,
        ports: Sequence[int],
        keys: Sequence[str],
        owners: Sequence[str],
        operator: str,
        *,
        seed: int = 1,
        notes: Notes | None = None,
        pause: float = 0.0,
        host: str = LOOPBACK,
    ) -> None:
        """``owners`` are OWNER keys of the tenants ``t0``, ``t1`` ... that make and revoke keys.

        ``pause`` is how many seconds each client waits between two requests, on the average.
        """
        self.notes = notes or Notes()
        self._host = host
        self._ports = ports
        self._keys = keys
        self._owners = owners
        self._operator = operator
        self._pause = pause
        self._random = random.Random(seed)  # noqa: S311  # no secret
        self._numbers = itertools.count()
        self._recent: deque[tuple[bytes, str]] = deque(maxlen=_RECENT)
        self._awaited: deque[str] = deque()
        self._is_over = False

    async def run(self) -> None:
        """Everything at once until `end` is called; then tenants that events wait for are made."""
        await asyncio.gather(*self._clients())
        with self._client() as client:
            for tenant in self._awaited:
                await self._make_tenant(client, tenant)

    def end(self) -> None:
        """Send nothing new."""
        self._is_over = True

    def _clients(self) -> Iterable[Coroutine[Any, Any, None]]:
        """All who send at the same time."""
        return [
            *(self._events() for _ in range(EVENT_CLIENTS)),
            *(self._get("list", LIST) for _ in range(LIST_CLIENTS)),
            *(self._get("check", _CHECK) for _ in range(CHECK_CLIENTS)),
            *(self._rotate(owner, number) for number, owner in enumerate(self._owners)),
            self._operate(),
        ]

    async def _rest(self) -> None:
        if self._pause:
            await asyncio.sleep(self._random.expovariate(1 / self._pause))

    def _client(self) -> AbstractContextManager[Client]:
        return contextlib.closing(Client(self._ports, self._random, host=self._host))

    async def _told(
        self,
        kind: str,
        client: Client,
        method: str,
        path: str,
        credential: str,
        wish: dict[str, Any] | None = None,
        header: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """The status of an answer, which is noted, and what it says."""
        body = b"" if wish is None else json.dumps(wish).encode()
        began = time.monotonic()
        answer = await client.send(method, path, f"Authorization: Bearer {credential}{header}", body)
        self.notes.note(kind, answer, began)
        is_object = answer.body.startswith(b"{")  # what a load balancer says by itself is a page
        return answer.status, json.loads(answer.body) if is_object else {}

    async def _deliver(self, kind: str, client: Client, body: bytes, event_id: str) -> bool:
        """Send an event, signed now; returns whether it is acknowledged."""
        began = time.monotonic()
        answer = await client.send("POST", _WEBHOOK, f"Provider-Signature: {sign(body, SECRET)}", body)
        self.notes.note(kind, answer, began)
        if answer.status == OK:
            self.notes.acknowledged.setdefault(event_id, time.monotonic())
        return answer.status == OK

    async def _events(self) -> None:
        with self._client() as client:
            while not self._is_over:
                body, event_id = self._event()
                self.notes.sent.add(event_id)
                if self._random.random() < TWIN_SHARE:
                    with self._client() as another:  # a new connection, as likely of the other process
                        are_taken = await asyncio.gather(
                            *(self._deliver("twin", each, body, event_id) for each in (client, another))
                        )
                else:
                    are_taken = [await self._deliver("event", client, body, event_id)]
                if not any(are_taken):
                    self._refused(body, event_id)
                self._recent.append((body, event_id))
                if self._random.random() < TWIN_SHARE:
                    await self._deliver("event again", client, *self._random.choice(self._recent))
                await self._rest()

    def _refused(self, body: bytes, event_id: str) -> None:
        """Told of an event that was not acknowledged."""

    def _event(self) -> tuple[bytes, str]:
        """An event that was never sent before, and its id."""
        number = next(self._numbers)
        chance = self._random
        tenant = chance.randrange(HOT) if chance.random() < HOT_SHARE else chance.randrange(TENANTS)
        created = int(time.time())
        if chance.random() < LATE_SHARE:
            created -= 1 + int(chance.expovariate(0.5))
        event_id = f"evt_soak_{number:09d}"
        # a customer that nothing has linked to the tenant yet, now and then; its invoices may come before the link
        customer = f"cus_{tenant}" if chance.random() < 0.9 else f"cus_{tenant}_{number // 1000}"
        known: dict[str, Any] = {"org": f"t{tenant}", "customer": customer}
        [kind] = chance.choices(list(_KINDS), list(_KINDS.values()))
        if kind == "unknown":
            known = {"org": f"late{number // 500}", "customer": f"cus_late{number // 500}"}
            if known["org"] not in self._awaited:
                self._awaited.append(known["org"])
        if kind in ("updated", "unknown"):
            price = chance.choice(("price_pro", "price_free"))
            event = events.updated(event_id=event_id, created=created, price=price, **known)
        elif kind == "deleted":
            event = events.deleted(event_id=event_id, created=created, **known)
        elif kind == "completed":
            event = events.completed(event_id=event_id, created=created, **known)
        else:
            invoice = events.failed if kind == "failed" else events.succeeded
            event = invoice(event_id=event_id, created=created, customer=customer)
        return events.body(event), event_id

    async def _get(self, kind: str, path: str) -> None:
        with self._client() as client:
            while not self._is_over:
                number = self._random.randrange(len(self._keys))
                of_whom = "suspended " if number % TENANTS in SUSPENDED else ""
                await self._told(of_whom + kind, client, "GET", path, self._keys[number])
                await self._rest()

    async def _rotate(self, owner: str, tenant: int) -> None:
        """Make a key, use it, rotate it, revoke what came of it; each time the one before must be refused at once."""
        with self._client() as client, self._client() as user:
            while not self._is_over:
                wish = {"orgId": f"t{tenant}", "name": "soak", "scopes": ["projects:read"]}
                status, made = await self._told("make key", client, "POST", KEYS, owner, wish)
                if status != CREATED:
                    continue
                await self._told("new key", user, "GET", LIST, made["secret"])
                path = f"{KEYS}/{made['id']}/rotate"
                status, rotated = await self._told("rotate key", client, "POST", path, owner, {"overlapSeconds": 0})
                if status != CREATED:
                    continue
                await self._use_revoked(user, made["secret"])
                await self._told("new key", user, "GET", LIST, rotated["secret"])
                await self._told("revoke key", client, "DELETE", f"{KEYS}/{rotated['id']}", owner)
                await self._use_revoked(user, rotated["secret"])

    async def _use_revoked(self, user: Client, secret: str) -> None:
        await self._told("revoked key", user, "GET", LIST, secret)

    async def _operate(self) -> None:
        """Rename tenants, hot ones too, suspend some and let them go on, and make those that events wait for."""
        with self._client() as client:
            number = 0
            while not self._is_over:
                number += 1
                tenant = self._random.randrange(HOT) if number % 2 else self._random.choice(SUSPENDED)
                wish: dict[str, Any] = {"name": f"Tenant {tenant}, {number}", "ownerEmail": f"{tenant}@example.com"}
                if tenant in SUSPENDED:
                    wish["suspended"] = self._random.random() < 0.5
                await self._told("operator", client, "PUT", f"{TENANTS_PATH}/t{tenant}", self._operator, wish)
                if len(self._awaited) > 2:
                    await self._make_tenant(client, self._awaited.popleft())
                await asyncio.sleep(_PAUSE)

    async def _make_tenant(self, client: Client, tenant: str) -> None:
        wish = {"name": "Late", "ownerEmail": "late@example.com"}
        await self._told("operator", client, "PUT", f"{TENANTS_PATH}/{tenant}", self._operator, wish)
