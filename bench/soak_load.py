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
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, Final

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
"""Tenants that the operator suspends and lets go on again; no others."""
EVENT_CLIENTS: Final = 24
LIST_CLIENTS: Final = 8
CHECK_CLIENTS: Final = 4
NO_ANSWER: Final = 0
OK: Final = 200
CREATED: Final = 201

_PATIENCE: Final = 15.0
_RECENT: Final = 200
_KINDS: Final = {"updated": 70, "deleted": 5, "failed": 8, "succeeded": 7, "completed": 5, "unknown": 5}
"""Of a hundred events; an unknown one is about a tenant that is made later."""
_PAUSE: Final = 0.05
_WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
_LIST: Final = "/api/v1/projects"
_CHECK: Final = "/api/v1/auth/verify/projects:read"
_KEYS: Final = "/api/v1/api-keys"
_TENANTS: Final = "/api/v1/tenants"


class Notes:
    """What was sent, and what was answered."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        """Ids of events."""
        self.acknowledged: set[str] = set()
        """Those of them that had a 200."""
        self.answers: dict[str, Counter[int]] = {}
        """How often each kind of request had each status."""
        self.longest = 0.0
        """Seconds that the slowest answer took."""

    @property
    def answered(self) -> int:
        """How many requests were answered."""
        return sum(counts.total() - counts[NO_ANSWER] for counts in self.answers.values())

    def note(self, kind: str, status: int, seconds: float) -> None:
        """Note an answer, and what it took."""
        self.answers.setdefault(kind, Counter())[status] += 1
        self.longest = max(self.longest, seconds)


class Client:
    """A connection that is kept open; its requests follow each other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, header: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and body of the answer; status `NO_ANSWER` where there is none in time. Then it connects anew."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._exchange(method, path, header, body)
        except (OSError, EOFError):
            self.close()
            return NO_ANSWER, b""

    async def _exchange(self, method: str, path: str, header: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
        answer = int(first.split()[1]), await reader.readexactly(sum(lengths))
        if b"connection: close" in lines:
            self.close()
        return answer

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Load:
    """Sends until told to stop."""

    def __init__(self, port: int, keys: Sequence[str], owners: Sequence[str], operator: str, seed: int = 1) -> None:
        """``owners`` are OWNER keys of the tenants ``t0``, ``t1`` ... that make and revoke keys."""
        self.notes = Notes()
        self._port = port
        self._keys = keys
        self._owners = owners
        self._operator = operator
        self._random = random.Random(seed)  # noqa: S311  # no secret
        self._numbers = itertools.count()
        self._recent: deque[bytes] = deque(maxlen=_RECENT)
        self._awaited: deque[str] = deque()
        self._is_over = False

    async def run(self, until: Awaitable[object]) -> None:
        """Everything at once until that is over; then tenants that events wait for are made."""
        await asyncio.gather(
            self._end(until),
            *(self._events() for _ in range(EVENT_CLIENTS)),
            *(self._get("list", _LIST) for _ in range(LIST_CLIENTS)),
            *(self._get("check", _CHECK) for _ in range(CHECK_CLIENTS)),
            *(self._rotate(owner, number) for number, owner in enumerate(self._owners)),
            self._operate(),
        )
        with self._client() as client:
            for tenant in self._awaited:
                await self._make_tenant(client, tenant)

    async def _end(self, until: Awaitable[object]) -> None:
        try:
            await until
        finally:
            self._is_over = True

    @contextlib.contextmanager
    def _client(self) -> Iterator[Client]:
        client = Client(self._port)
        try:
            yield client
        finally:
            client.close()

    async def _told(
        self, kind: str, client: Client, method: str, path: str, credential: str, wish: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The status of an answer, which is noted, and what a good one says."""
        body = b"" if wish is None else json.dumps(wish).encode()
        begun = time.perf_counter()
        status, text = await client.send(method, path, f"Authorization: Bearer {credential}", body)
        self.notes.note(kind, status, time.perf_counter() - begun)
        return status, json.loads(text) if text and status in (OK, CREATED) else {}

    async def _deliver(self, kind: str, client: Client, body: bytes) -> int:
        """The status of the answer to an event, signed now."""
        begun = time.perf_counter()
        status, _ = await client.send("POST", _WEBHOOK, f"Provider-Signature: {sign(body, SECRET)}", body)
        self.notes.note(kind, status, time.perf_counter() - begun)
        return status

    async def _events(self) -> None:
        with self._client() as client:
            while not self._is_over:
                body, event_id = self._event()
                self.notes.sent.add(event_id)
                if self._random.random() < TWIN_SHARE:
                    with self._client() as another:  # a new connection, as likely of the other process
                        answers = await asyncio.gather(
                            *(self._deliver("twin", each, body) for each in (client, another))
                        )
                else:
                    answers = [await self._deliver("event", client, body)]
                if OK in answers:
                    self.notes.acknowledged.add(event_id)
                self._recent.append(body)
                if self._random.random() < TWIN_SHARE:
                    await self._deliver("event again", client, self._random.choice(self._recent))

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
                await self._told(kind, client, "GET", path, self._random.choice(self._keys))

    async def _rotate(self, owner: str, tenant: int) -> None:
        """Make a key, use it, rotate it, revoke what came of it; each time the one before must be refused at once."""
        with self._client() as client, self._client() as user:
            while not self._is_over:
                wish = {"orgId": f"t{tenant}", "name": "soak", "scopes": ["projects:read"]}
                status, made = await self._told("make key", client, "POST", _KEYS, owner, wish)
                if status != CREATED:
                    continue
                await self._told("new key", user, "GET", _LIST, made["secret"])
                path = f"{_KEYS}/{made['id']}/rotate"
                status, rotated = await self._told("rotate key", client, "POST", path, owner, {"overlapSeconds": 0})
                if status != CREATED:
                    continue
                await self._use_revoked(user, made["secret"])
                await self._told("new key", user, "GET", _LIST, rotated["secret"])
                await self._told("revoke key", client, "DELETE", f"{_KEYS}/{rotated['id']}", owner)
                await self._use_revoked(user, rotated["secret"])

    async def _use_revoked(self, user: Client, secret: str) -> None:
        await self._told("revoked key", user, "GET", _LIST, secret)

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
                await self._told("operator", client, "PUT", f"{_TENANTS}/t{tenant}", self._operator, wish)
                if len(self._awaited) > 2:
                    await self._make_tenant(client, self._awaited.popleft())
                await asyncio.sleep(_PAUSE)

    async def _make_tenant(self, client: Client, tenant: str) -> None:
        wish = {"name": "Late", "ownerEmail": "late@example.com"}
        await self._told("operator", client, "PUT", f"{_TENANTS}/{tenant}", self._operator, wish)
