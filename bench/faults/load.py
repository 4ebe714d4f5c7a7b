"""The load during faults: events, lists, gateway checks, keys, members, checkouts, and an operator.

Clients repeat a request until they get a definite answer. Events are delivered again with growing
pauses until they are acknowledged, as the payment provider does.
"""

import asyncio
import contextlib
import heapq
import itertools
import json
import random
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from bench.events import sign
from bench.faults.client import CREATED, LOOPBACK, NO_ANSWER, OK, ClientAnswer, LoadClient
from bench.support import SECRET, TENANTS
from tenantry.domain.audit import Action
from tests.support import events

Change = tuple[str, str]
"""An action of the audit trail and the id of its target."""

REVOKED: Final = "revoked key"
SUCCESSES: Final = {
    "event": {OK},
    "twin": {OK},
    "event again": {OK},
    "list": {OK},
    "check": {OK},
    "suspended list": {OK, 403},
    "suspended check": {OK, 403},
    "make key": {CREATED},
    "rotate key": {CREATED},
    "new key": {OK},
    "revoke key": {204},
    REVOKED: {401},
    "operator": {OK, CREATED},
    "add member": {CREATED},
    "member": {OK},
    "remove member": {204},
    "checkout": {CREATED},
}
"""Every kind of request, and the statuses that count as success; a tenant that may be suspended may
get 403.
"""
READS: Final = ("list", "check", "suspended list", "suspended check", "member", "new key", REVOKED)
CHANGES: Final = ("make key", "rotate key", "revoke key", "operator", "add member", "remove member")
REPEATED: Final = {
    "make key": {409},
    "rotate key": {409},
    "add member": {409},
    "remove member": {404, 409},
}
"""Statuses for the repetition of a request that took effect although its answer was lost."""
UNAVAILABLE: Final = 503
BY_BALANCER: Final = (502, 504)
"""A balancer's answers for a host that does not answer."""
INDEFINITE: Final = (NO_ANSWER, UNAVAILABLE, *BY_BALANCER)
"""After these a client does not know whether the request took effect."""
KEY_NAME: Final = "faults"
"""The name of every key that the load creates."""
LIST: Final = "/api/v1/projects"

_HOT: Final = 10
"""Tenants that get `_HOT_SHARE` of all events."""
_HOT_SHARE: Final = 0.8
_TWIN_SHARE: Final = 0.05
"""The share of events sent twice at the same time; as many are sent once more later."""
_LATE_SHARE: Final = 0.02
_KINDS: Final = {
    "updated": 70,
    "deleted": 5,
    "failed": 8,
    "succeeded": 7,
    "completed": 5,
    "unknown": 5,
}
"""Weights of event kinds; an unknown event names a tenant that is created later."""
_SUSPENDED: Final = range(TENANTS - 50, TENANTS)
"""Tenants that the operator suspends and resumes."""
_RECENT: Final = 200
_EVENT_CLIENTS: Final = 16
_LIST_CLIENTS: Final = 6
_CHECK_CLIENTS: Final = 3
_REDELIVERY_CLIENTS: Final = 8
_WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
_CHECK: Final = "/api/v1/auth/verify/projects:read"
_KEYS: Final = "/api/v1/api-keys"
_TENANTS: Final = "/api/v1/tenants"
_MEMBERS: Final = "/api/v1/members"
_CHECKOUT: Final = "/api/v1/billing/checkout-sessions"
_CHECKOUT_TIMEOUT: Final = 45.0
_CHECKOUT_PAUSES: Final = 4
_OPERATOR_PAUSE: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
_RETRY_PAUSE: Final = 0.1


class AnsweredRequest(NamedTuple):
    """One request, when its answer came on the monotonic clock, and how long it took in seconds."""

    at: float
    kind: str
    status: int
    took: float
    has_retry_after: bool

    @property
    def is_success(self) -> bool:
        """Whether the status is one that this kind of request expects."""
        return self.status in SUCCESSES[self.kind]

    @property
    def is_retryable(self) -> bool:
        """Whether it is a 503 with ``Retry-After``."""
        return self.status == UNAVAILABLE and self.has_retry_after


class Load:
    """Sends requests until `end`, then repeats until every event is acknowledged."""

    def __init__(
        self,
        ports: Sequence[int],
        keys: Sequence[str],
        owners: dict[str, str],
        operator: str,
        *,
        seed: int,
        pause: float,
        host: str = LOOPBACK,
        revoked_key_clients: int = 1,
    ) -> None:
        """``owners`` are OWNER keys by tenant; ``pause`` is the mean of seconds between a client's
        requests.
        """
        self.sent: set[str] = set()
        """Ids of events."""
        self.acknowledged: dict[str, float] = {}
        """When each event got its first 200, on the monotonic clock."""
        self.requests: list[AnsweredRequest] = []
        """Every request, in order."""
        self.revoked: list[str] = []
        """Secrets of keys whose revocation was answered."""
        self.confirmed: dict[Change, float] = {}
        """When an answer first confirmed each change, on the monotonic clock."""
        self.contradictions: list[tuple[float, str]] = []
        """When an answer contradicted an earlier one, on the monotonic clock, and how."""
        self._host = host
        self._ports = ports
        self._keys = keys
        self._owners = owners
        self._operator = operator
        self._pause = pause
        self._revoked_key_clients = revoked_key_clients
        self._random = random.Random(seed)  # noqa: S311  # no secret
        self._numbers = itertools.count()
        self._recent: deque[tuple[bytes, str]] = deque(maxlen=_RECENT)
        self._missing_tenants: deque[str] = deque()
        self._due: list[tuple[float, int, bytes, str, float]] = []
        self._order = itertools.count()
        self._is_over = False

    async def run(self) -> None:
        """Run all clients until `end`; then create the tenants that events wait for."""
        await asyncio.gather(*self._clients())
        with self._client() as client:
            for tenant in self._missing_tenants:
                await self._create_tenant(client, tenant)

    def end(self) -> None:
        """Start no new work."""
        self._is_over = True

    def _clients(self) -> Iterable[Coroutine[Any, Any, None]]:
        for tenant, owner in self._owners.items():
            yield from (
                self._use_keys(tenant, owner),
                self._use_members(tenant, owner),
                self._check_out(owner),
            )
        yield from (self._send_events() for _ in range(_EVENT_CLIENTS))
        yield from (self._get("list", LIST) for _ in range(_LIST_CLIENTS))
        yield from (self._get("check", _CHECK) for _ in range(_CHECK_CLIENTS))
        yield from (self._redeliver() for _ in range(_REDELIVERY_CLIENTS))
        yield from (self._use_revoked_keys() for _ in range(self._revoked_key_clients))
        yield self._operate()

    async def _rest(self) -> None:
        await asyncio.sleep(self._random.expovariate(1 / self._pause))

    def _client(self) -> AbstractContextManager[LoadClient]:
        return contextlib.closing(LoadClient(self._ports, self._random, host=self._host))

    def _note(self, kind: str, answer: ClientAnswer, began: float) -> None:
        now = time.monotonic()
        self.requests.append(
            AnsweredRequest(now, kind, answer.status, now - began, answer.has_retry_after)
        )

    async def _request(
        self,
        kind: str,
        client: LoadClient,
        method: str,
        path: str,
        credential: str,
        document: dict[str, Any] | None = None,
        header: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """Send a request once; return the status and the answered object."""
        body = b"" if document is None else json.dumps(document).encode()
        began = time.monotonic()
        answer = await client.send(
            method, path, f"Authorization: Bearer {credential}{header}", body
        )
        self._note(kind, answer, began)
        is_object = answer.body.startswith(b"{")  # a load balancer's own answer is a page
        return answer.status, json.loads(answer.body) if is_object else {}

    async def _request_until_definite(
        self,
        kind: str,
        client: LoadClient,
        method: str,
        path: str,
        credential: str,
        document: dict[str, Any] | None = None,
        *,
        idempotency_key: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """Repeat a request until its answer is definite."""
        header = f"\r\nIdempotency-Key: {idempotency_key}" if idempotency_key else ""
        while True:
            status, answer = await self._request(
                kind, client, method, path, credential, document, header
            )
            if status not in INDEFINITE and answer.get("code") != "idempotency_in_flight":
                return status, answer
            await asyncio.sleep(_RETRY_PAUSE)

    # Events

    async def _send_events(self) -> None:
        with self._client() as client:
            while not self._is_over:
                body, event_id = self._new_event()
                self.sent.add(event_id)
                if self._random.random() < _TWIN_SHARE:
                    with self._client() as another:  # a new connection may reach another process
                        delivered = await asyncio.gather(
                            *(
                                self._deliver("twin", each, body, event_id)
                                for each in (client, another)
                            )
                        )
                else:
                    delivered = [await self._deliver("event", client, body, event_id)]
                if not any(delivered):
                    self._redeliver_after(_FIRST_PAUSE, body, event_id)
                self._recent.append((body, event_id))
                if self._random.random() < _TWIN_SHARE:
                    await self._deliver("event again", client, *self._random.choice(self._recent))
                await self._rest()

    async def _deliver(self, kind: str, client: LoadClient, body: bytes, event_id: str) -> bool:
        """Send an event, signed now; return whether it is acknowledged."""
        began = time.monotonic()
        answer = await client.send(
            "POST", _WEBHOOK, f"Provider-Signature: {sign(body, SECRET)}", body
        )
        self._note(kind, answer, began)
        if answer.status == OK:
            self.acknowledged.setdefault(event_id, time.monotonic())
        return answer.status == OK

    def _redeliver_after(self, pause: float, body: bytes, event_id: str) -> None:
        heapq.heappush(
            self._due, (time.monotonic() + pause, next(self._order), body, event_id, pause)
        )

    async def _redeliver(self) -> None:
        with self._client() as client:
            while not self._is_over or self.sent - self.acknowledged.keys():
                if not self._due or self._due[0][0] > time.monotonic():
                    await asyncio.sleep(_RETRY_PAUSE)
                    continue
                _, _, body, event_id, pause = heapq.heappop(self._due)
                if not await self._deliver("event again", client, body, event_id):
                    self._redeliver_after(min(2 * pause, _LONGEST_PAUSE), body, event_id)

    def _new_event(self) -> tuple[bytes, str]:
        """Compose a new event; return its body and id."""
        number = next(self._numbers)
        chance = self._random
        tenant = (
            chance.randrange(_HOT) if chance.random() < _HOT_SHARE else chance.randrange(TENANTS)
        )
        created = int(time.time())
        if chance.random() < _LATE_SHARE:
            created -= 1 + int(chance.expovariate(0.5))
        event_id = f"evt_load_{number:09d}"
        # some customers are not linked to the tenant yet; their invoices may come before the link
        customer = f"cus_{tenant}" if chance.random() < 0.9 else f"cus_{tenant}_{number // 1000}"
        ids: dict[str, Any] = {"org": f"t{tenant}", "customer": customer}
        [kind] = chance.choices(list(_KINDS), list(_KINDS.values()))
        if kind == "unknown":
            ids = {"org": f"late{number // 500}", "customer": f"cus_late{number // 500}"}
            if ids["org"] not in self._missing_tenants:
                self._missing_tenants.append(ids["org"])
        if kind in ("updated", "unknown"):
            price = chance.choice(("price_pro", "price_free"))
            event = events.updated(event_id=event_id, created=created, price=price, **ids)
        elif kind == "deleted":
            event = events.deleted(event_id=event_id, created=created, **ids)
        elif kind == "completed":
            event = events.completed(event_id=event_id, created=created, **ids)
        else:
            invoice = events.failed if kind == "failed" else events.succeeded
            event = invoice(event_id=event_id, created=created, customer=customer)
        return events.body(event), event_id

    # Keys

    async def _get(self, kind: str, path: str) -> None:
        with self._client() as client:
            while not self._is_over:
                number = self._random.randrange(len(self._keys))
                prefix = "suspended " if number % TENANTS in _SUSPENDED else ""
                await self._request(prefix + kind, client, "GET", path, self._keys[number])
                await self._rest()

    def _confirm(self, action: Action, target: str | None) -> None:
        if target is not None:
            self.confirmed.setdefault((action.value, target), time.monotonic())

    async def _use_keys(self, tenant: str, owner: str) -> None:
        """Create a key, use it, rotate it, revoke the result; check that each revoked key is
        rejected.
        """
        wanted = {"orgId": tenant, "name": KEY_NAME, "scopes": ["projects:read"]}
        with self._client() as client, self._client() as user:
            for number in itertools.count():
                if self._is_over:
                    return
                status, made = await self._request_until_definite(
                    "make key",
                    client,
                    "POST",
                    _KEYS,
                    owner,
                    wanted,
                    idempotency_key=f"{tenant}-{number}-made",
                )
                self._confirm(Action.KEY_CREATED, made.get("id"))
                if status != CREATED:
                    await self._revoke(client, owner, made.get("id"), "")
                    continue
                await self._request_until_definite("new key", user, "GET", LIST, made["secret"])
                status, rotated = await self._request_until_definite(
                    "rotate key",
                    client,
                    "POST",
                    f"{_KEYS}/{made['id']}/rotate",
                    owner,
                    {"overlapSeconds": 0},
                    idempotency_key=f"{tenant}-{number}-rotated",
                )
                if status == CREATED or "id" in rotated:
                    self._confirm(Action.KEY_ROTATED, made["id"])
                    self._confirm(Action.KEY_CREATED, rotated["id"])
                    self.revoked.append(made["secret"])
                    await self._request_until_definite(REVOKED, user, "GET", LIST, made["secret"])
                if status == CREATED:
                    await self._request_until_definite(
                        "new key", user, "GET", LIST, rotated["secret"]
                    )
                await self._revoke(client, owner, rotated.get("id"), rotated.get("secret", ""))
                await self._rest()

    async def _revoke(
        self, client: LoadClient, owner: str, key_id: str | None, secret: str
    ) -> None:
        if key_id is None:
            return
        status, _ = await self._request_until_definite(
            "revoke key", client, "DELETE", f"{_KEYS}/{key_id}", owner
        )
        if status not in SUCCESSES["revoke key"]:
            return
        self._confirm(Action.KEY_REVOKED, key_id)
        if secret:
            self.revoked.append(secret)
            await self._request_until_definite(REVOKED, client, "GET", LIST, secret)

    async def _use_revoked_keys(self) -> None:
        with self._client() as user:
            while not self._is_over:
                if self.revoked:
                    secret = self._random.choice(
                        (self.revoked[-1], self._random.choice(self.revoked))
                    )
                    await self._request(REVOKED, user, "GET", LIST, secret)
                await self._rest()

    # Members, checkouts, tenants

    async def _use_members(self, tenant: str, owner: str) -> None:
        """Invite a member and remove it; check the member list after each step."""
        with self._client() as client:
            for number in itertools.count():
                if self._is_over:
                    return
                user = f"user-{tenant}-{number}"
                _, added = await self._request_until_definite(
                    "add member",
                    client,
                    "POST",
                    _MEMBERS,
                    owner,
                    {"userId": user, "role": "member"},
                    idempotency_key=user,
                )
                self._confirm(Action.MEMBER_INVITED, added.get("id"))
                await self._check_member(client, owner, user, is_listed=True)
                if "id" in added:
                    path = f"{_MEMBERS}/{added['id']}"
                    status, _ = await self._request_until_definite(
                        "remove member", client, "DELETE", path, owner
                    )
                    if status in SUCCESSES["remove member"]:
                        self._confirm(Action.MEMBER_REMOVED, added["id"])
                    await self._check_member(client, owner, user, is_listed=False)
                await self._rest()

    async def _check_member(
        self, client: LoadClient, owner: str, user: str, *, is_listed: bool
    ) -> None:
        path = f"{_MEMBERS}?userId={user}"
        status, page = await self._request_until_definite("member", client, "GET", path, owner)
        if status == OK and bool(page["data"]) is not is_listed:
            self.contradictions.append(
                (time.monotonic(), f"{user} is {'missing' if is_listed else 'still listed'}")
            )

    async def _check_out(self, owner: str) -> None:
        client = LoadClient(self._ports, self._random, _CHECKOUT_TIMEOUT, host=self._host)
        while not self._is_over:
            await self._request("checkout", client, "POST", _CHECKOUT, owner, {"plan": "pro"})
            for _ in range(_CHECKOUT_PAUSES):
                await self._rest()
        client.close()

    async def _operate(self) -> None:
        """Rename tenants, suspend and resume some, and create tenants that events wait for."""
        with self._client() as client:
            for number in itertools.count(1):
                if self._is_over:
                    return
                tenant = (
                    self._random.randrange(_HOT) if number % 2 else self._random.choice(_SUSPENDED)
                )
                wanted: dict[str, Any] = {
                    "name": f"Tenant {tenant}, {number}",
                    "ownerEmail": f"{tenant}@example.com",
                }
                if tenant in _SUSPENDED:
                    wanted["suspended"] = self._random.random() < 0.5
                await self._request(
                    "operator", client, "PUT", f"{_TENANTS}/t{tenant}", self._operator, wanted
                )
                if len(self._missing_tenants) > 2:
                    await self._create_tenant(client, self._missing_tenants.popleft())
                await asyncio.sleep(_OPERATOR_PAUSE)

    async def _create_tenant(self, client: LoadClient, tenant: str) -> None:
        wanted = {"name": "Late", "ownerEmail": "late@example.com"}
        await self._request_until_definite(
            "operator", client, "PUT", f"{_TENANTS}/{tenant}", self._operator, wanted
        )
