"""The usual load: events, lists, gateway checks, keys, members, checkouts, and an operator.

Events are delivered again with growing pauses until they are acknowledged, as the payment provider
does.
"""

import asyncio
import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from bench.support import TENANTS as TENANT_COUNT
from bench.torture.client import CREATED, OK, LoadClient
from bench.torture.clients import (
    KEYS,
    LIST,
    MEMBERS,
    NO_CONTENT,
    RETRY_PAUSE,
    TENANTS,
    ApiRequest,
    Clients,
    Work,
)
from bench.torture.deployment import OPERATOR, Deployment
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
    "revoke key": {NO_CONTENT},
    REVOKED: {401},
    "operator": {OK, CREATED},
    "add member": {CREATED},
    "member": {OK},
    "remove member": {NO_CONTENT},
    "checkout": {CREATED},
}
"""Every kind of request, and the statuses that count as success; a tenant that may be suspended may
get 403.
"""
RARE: Final = ("twin", "event again", "suspended list", "suspended check")
"""Kinds that need not follow each other within seconds."""
READS: Final = ("list", "check", "suspended list", "suspended check", "member", "new key", REVOKED)
REPEATED: Final = {
    "make key": {409},
    "rotate key": {409},
    "add member": {409},
    "remove member": {404, 409},
}
"""Statuses for the repetition of a request that took effect although its answer was lost."""
KEY_NAME: Final = "torture"
"""The name of every key that the load creates."""

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
_SUSPENDED: Final = range(TENANT_COUNT - 50, TENANT_COUNT)
"""Tenants that the operator suspends and resumes."""
_RECENT: Final = 200
_EVENT_CLIENTS: Final = 16
_LIST_CLIENTS: Final = 6
_CHECK_CLIENTS: Final = 3
_REDELIVERY_CLIENTS: Final = 8
_CHECK: Final = "/api/v1/auth/verify/projects:read"
_CHECKOUT: Final = "/api/v1/billing/checkout-sessions"
_CHECKOUT_TIMEOUT: Final = 45.0
_CHECKOUT_PAUSES: Final = 4
_OPERATOR_PAUSE: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0


class Load(Clients):
    """Sends requests until `end`, then repeats until every event is acknowledged."""

    successes = SUCCESSES

    def __init__(
        self,
        site: Deployment,
        chance: random.Random,
        pause: float,
        revoked_key_clients: int = 1,
    ) -> None:
        super().__init__(site, chance, pause)
        self.sent: set[str] = set()
        """Ids of events."""
        self.acknowledged: dict[str, float] = {}
        """When each event got its first 200, on the monotonic clock."""
        self.revoked: list[str] = []
        """Secrets of keys whose revocation was answered."""
        self.confirmed: dict[Change, float] = {}
        """When an answer first confirmed each change, on the monotonic clock."""
        self.contradictions: list[tuple[float, str]] = []
        """When an answer contradicted an earlier one, on the monotonic clock, and how."""
        self._revoked_key_clients = revoked_key_clients
        self._numbers = itertools.count()
        self._recent: deque[tuple[bytes, str]] = deque(maxlen=_RECENT)
        self._missing_tenants: deque[str] = deque()
        self._due: list[tuple[float, int, bytes, str, float]] = []
        self._order = itertools.count()

    async def run(self) -> None:
        """Run all clients until `end`; then create the tenants that events wait for."""
        await super().run()
        with self.client() as client:
            for tenant in self._missing_tenants:
                await self._create_tenant(client, tenant)

    def _work(self) -> Iterable[Coroutine[Any, Any, None]]:
        for tenant, owner in self._site.owners.items():
            yield self.repeat(partial(self._use_key, tenant, owner))
            yield self.repeat(partial(self._use_member, tenant, owner))
            yield self.repeat(
                partial(self._check_out, owner),
                patience=_CHECKOUT_TIMEOUT,
                pause=_CHECKOUT_PAUSES * self._pause,
            )
        clients: dict[Work, int] = {
            self._send_event: _EVENT_CLIENTS,
            partial(self._get, "list", LIST): _LIST_CLIENTS,
            partial(self._get, "check", _CHECK): _CHECK_CLIENTS,
            self._use_revoked_key: self._revoked_key_clients,
        }
        for work, number in clients.items():
            yield from (self.repeat(work) for _ in range(number))
        yield from (self._redeliver() for _ in range(_REDELIVERY_CLIENTS))
        yield self.repeat(self._operate, pause=_OPERATOR_PAUSE)

    # Events

    async def _send_event(self, client: LoadClient, _: int) -> None:
        body, event_id = self._new_event()
        self.sent.add(event_id)
        if self._chance.random() < _TWIN_SHARE:
            with self.client() as another:  # a new connection may reach another process
                delivered = await asyncio.gather(
                    *(self._deliver("twin", each, body, event_id) for each in (client, another))
                )
        else:
            delivered = [await self._deliver("event", client, body, event_id)]
        if not any(delivered):
            self._redeliver_after(_FIRST_PAUSE, body, event_id)
        self._recent.append((body, event_id))
        if self._chance.random() < _TWIN_SHARE:
            await self._deliver("event again", client, *self._chance.choice(self._recent))

    async def _deliver(self, kind: str, client: LoadClient, body: bytes, event_id: str) -> bool:
        is_acknowledged = await self.deliver(kind, client, body)
        if is_acknowledged:
            self.acknowledged.setdefault(event_id, time.monotonic())
        return is_acknowledged

    def _redeliver_after(self, pause: float, body: bytes, event_id: str) -> None:
        due = time.monotonic() + pause
        heapq.heappush(self._due, (due, next(self._order), body, event_id, pause))

    async def _redeliver(self) -> None:
        with self.client() as client:
            while not self.is_over or self.sent - self.acknowledged.keys():
                if not self._due or self._due[0][0] > time.monotonic():
                    await asyncio.sleep(RETRY_PAUSE)
                    continue
                _, _, body, event_id, pause = heapq.heappop(self._due)
                if not await self._deliver("event again", client, body, event_id):
                    self._redeliver_after(min(2 * pause, _LONGEST_PAUSE), body, event_id)

    def _new_event(self) -> tuple[bytes, str]:
        """Compose a new event; return its body and id."""
        number = next(self._numbers)
        chance = self._chance
        tenant = chance.randrange(_HOT if chance.random() < _HOT_SHARE else TENANT_COUNT)
        created = int(time.time())
        if chance.random() < _LATE_SHARE:
            created -= 1 + int(chance.expovariate(0.5))
        event_id = f"evt_load_{number:09d}"
        # some customers are not linked to the tenant yet; their invoices may come before the link
        customer = f"cus_{tenant}" if chance.random() < 0.9 else f"cus_{tenant}_{number // 1000}"
        org = f"t{tenant}"
        [kind] = chance.choices(list(_KINDS), list(_KINDS.values()))
        if kind == "unknown":
            kind, org, customer = "updated", f"late{number // 500}", f"cus_late{number // 500}"
            if org not in self._missing_tenants:
                self._missing_tenants.append(org)
        own: dict[str, Any] = {"event_id": event_id, "created": created, "customer": customer}
        if kind in ("updated", "deleted", "completed"):
            own["org"] = org
        if kind == "updated":
            own["price"] = chance.choice(("price_pro", "price_free"))
        return events.body(_COMPOSERS[kind](**own)), event_id

    # Keys

    async def _get(self, kind: str, path: str, client: LoadClient, _: int) -> None:
        number = self._chance.randrange(len(self._site.keys))
        prefix = "suspended " if number % TENANT_COUNT in _SUSPENDED else ""
        await self.request(client, ApiRequest(prefix + kind, "GET", path, self._site.keys[number]))

    def _confirm(self, action: Action, target: str | None) -> None:
        if target is not None:
            self.confirmed.setdefault((action.value, target), time.monotonic())

    async def _use_key(self, tenant: str, owner: str, client: LoadClient, number: int) -> None:
        """Create a key, use it, rotate it, revoke the result; check that each revoked key is
        rejected.
        """
        wanted = {"orgId": tenant, "name": KEY_NAME, "scopes": ["projects:read"]}
        status, made = await self.request_until_definite(
            client, ApiRequest("make key", "POST", KEYS, owner, wanted, f"{tenant}-{number}-made")
        )
        self._confirm(Action.KEY_CREATED, made.get("id"))
        if status != CREATED:
            await self._revoke(client, owner, made.get("id"), "")
            return
        with self.client() as user:
            await self.request_until_definite(
                user, ApiRequest("new key", "GET", LIST, made["secret"])
            )
            status, rotated = await self.request_until_definite(
                client,
                ApiRequest(
                    "rotate key",
                    "POST",
                    f"{KEYS}/{made['id']}/rotate",
                    owner,
                    {"overlapSeconds": 0},
                    f"{tenant}-{number}-rotated",
                ),
            )
            if status == CREATED or "id" in rotated:
                self._confirm(Action.KEY_ROTATED, made["id"])
                self._confirm(Action.KEY_CREATED, rotated["id"])
                await self._use_revoked(user, made["secret"])
            if status == CREATED:
                await self.request_until_definite(
                    user, ApiRequest("new key", "GET", LIST, rotated["secret"])
                )
        await self._revoke(client, owner, rotated.get("id"), rotated.get("secret", ""))

    async def _revoke(
        self, client: LoadClient, owner: str, key_id: str | None, secret: str
    ) -> None:
        if key_id is None:
            return
        status, _ = await self.request_until_definite(
            client, ApiRequest("revoke key", "DELETE", f"{KEYS}/{key_id}", owner)
        )
        if status in SUCCESSES["revoke key"]:
            self._confirm(Action.KEY_REVOKED, key_id)
            if secret:
                await self._use_revoked(client, secret)

    async def _use_revoked(self, client: LoadClient, secret: str) -> None:
        self.revoked.append(secret)
        await self.request_until_definite(client, ApiRequest(REVOKED, "GET", LIST, secret))

    async def _use_revoked_key(self, client: LoadClient, _: int) -> None:
        if self.revoked:
            secret = self._chance.choice((self.revoked[-1], self._chance.choice(self.revoked)))
            await self.request(client, ApiRequest(REVOKED, "GET", LIST, secret))

    # Members, checkouts, tenants

    async def _use_member(self, tenant: str, owner: str, client: LoadClient, number: int) -> None:
        """Invite a member and remove it; check the member list after each step."""
        user = f"user-{tenant}-{number}"
        wanted = {"userId": user, "role": "member"}
        _, added = await self.request_until_definite(
            client, ApiRequest("add member", "POST", MEMBERS, owner, wanted, user)
        )
        self._confirm(Action.MEMBER_INVITED, added.get("id"))
        await self._check_member(client, owner, user, is_listed=True)
        if "id" in added:
            status, _ = await self.request_until_definite(
                client, ApiRequest("remove member", "DELETE", f"{MEMBERS}/{added['id']}", owner)
            )
            if status in SUCCESSES["remove member"]:
                self._confirm(Action.MEMBER_REMOVED, added["id"])
            await self._check_member(client, owner, user, is_listed=False)

    async def _check_member(
        self, client: LoadClient, owner: str, user: str, *, is_listed: bool
    ) -> None:
        path = f"{MEMBERS}?userId={user}"
        status, page = await self.request_until_definite(
            client, ApiRequest("member", "GET", path, owner)
        )
        if status == OK and bool(page["data"]) is not is_listed:
            found = f"{user} is {'missing' if is_listed else 'still listed'}"
            self.contradictions.append((time.monotonic(), found))

    async def _check_out(self, owner: str, client: LoadClient, _: int) -> None:
        await self.request(
            client, ApiRequest("checkout", "POST", _CHECKOUT, owner, {"plan": "pro"})
        )

    async def _operate(self, client: LoadClient, number: int) -> None:
        """Rename tenants, suspend and resume some, and create tenants that events wait for."""
        tenant = self._chance.choice(_SUSPENDED) if number % 2 else self._chance.randrange(_HOT)
        wanted: dict[str, object] = {
            "name": f"Tenant {tenant}, {number}",
            "ownerEmail": f"{tenant}@example.com",
        }
        if tenant in _SUSPENDED:
            wanted["suspended"] = self._chance.random() < 0.5
        await self.request(
            client, ApiRequest("operator", "PUT", f"{TENANTS}/t{tenant}", OPERATOR, wanted)
        )
        if len(self._missing_tenants) > 2:
            await self._create_tenant(client, self._missing_tenants.popleft())

    async def _create_tenant(self, client: LoadClient, tenant: str) -> None:
        wanted = {"name": "Late", "ownerEmail": "late@example.com"}
        await self.request_until_definite(
            client, ApiRequest("operator", "PUT", f"{TENANTS}/{tenant}", OPERATOR, wanted)
        )


_COMPOSERS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    "updated": events.updated,
    "deleted": events.deleted,
    "completed": events.completed,
    "failed": events.failed,
    "succeeded": events.succeeded,
}
