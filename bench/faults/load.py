"""The load of a run with faults: as `bench.soak_load`, but that nobody gives up before there is a definite answer.

Events are delivered again until they are acknowledged, with growing pauses, as the payment provider does. Whoever
makes, rotates or revokes a key, or adds or removes a member, repeats the request until it is known what became of it.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

from bench.soak_load import CREATED, KEYS, LIST, LOOPBACK, NO_ANSWER, OK, TENANTS_PATH, Answer, Client, Load, Notes
from tenantry.domain.audit import Action

Change = tuple[str, str]
"""What was done, as the audit trail has it, and the id of what it was done to."""

REVOKED: Final = "revoked key"
SUCCESSES: Final = {
    "event": {OK}, "twin": {OK}, "event again": {OK}, "list": {OK}, "check": {OK},
    "suspended list": {OK, 403}, "suspended check": {OK, 403}, "make key": {CREATED},
    "rotate key": {CREATED}, "new key": {OK}, "revoke key": {204}, REVOKED: {401}, "operator": {OK, CREATED},
    "add member": {CREATED}, "member": {OK}, "remove member": {204}, "checkout": {CREATED},
}  # fmt: skip
"""Every kind of request, and the statuses that it is sent for. A tenant that may be suspended may be told so."""
READS: Final = ("list", "check", "suspended list", "suspended check", "member", "new key", REVOKED)
CHANGES: Final = ("make key", "rotate key", "revoke key", "operator", "add member", "remove member")
REPEATED: Final = {
    "make key": {409}, "rotate key": {409}, "add member": {409}, "remove member": {404, 409},
}  # fmt: skip
"""What the repetition of a request may be told that was carried out before, though its answer was lost."""
UNAVAILABLE: Final = 503
BY_BALANCER: Final = (502, 504)
"""What a balancer says where a service that it has asked gives no answer."""
KEY_NAME: Final = "faults"
"""Of every key that is made."""
UNDECIDED: Final = (NO_ANSWER, UNAVAILABLE, *BY_BALANCER)
"""After these nobody knows what became of a request."""

_MEMBERS: Final = "/api/v1/members"
_CHECKOUT: Final = "/api/v1/billing/checkout-sessions"
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
_A_MOMENT: Final = 0.1
_REDELIVERIES: Final = 8
"""At a time."""
_PROVIDER_PATIENCE: Final = 45.0
_RARELY: Final = 4
"""Times the usual pause."""


class Moment(NamedTuple):
    """An answer."""

    at: float
    """On the monotonic clock."""
    kind: str
    status: int
    took: float
    is_told: bool

    @property
    def is_success(self) -> bool:
        """Whether it is what the request was sent for."""
        return self.status in SUCCESSES[self.kind]

    @property
    def is_refusal(self) -> bool:
        """Whether it says when to come again."""
        return self.status == UNAVAILABLE and self.is_told


class Timeline(Notes):
    """Every answer, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[Moment] = []

    def note(self, kind: str, answer: Answer, began: float) -> None:
        """Note an answer."""
        super().note(kind, answer, began)
        now = time.monotonic()
        self.moments.append(Moment(now, kind, answer.status, now - began, answer.is_told))


class FaultLoad(Load):
    """Sends until told to stop, then until all is acknowledged. ``owners`` are OWNER keys, by tenant."""

    def __init__(
        self,
        ports: Sequence[int],
        keys: Sequence[str],
        owners: dict[str, str],
        operator: str,
        *,
        timeline: Timeline,
        seed: int,
        pause: float,
        host: str = LOOPBACK,
    ) -> None:
        super().__init__(
            ports, keys, list(owners.values()), operator, seed=seed, notes=timeline, pause=pause, host=host
        )
        self.ended: list[str] = []
        """Secrets of keys that were said to be revoked."""
        self.told: dict[Change, float] = {}
        """When an answer first said of a change that it was carried out, on the monotonic clock."""
        self.misled: list[tuple[float, str]] = []
        """When an answer said what an earlier one had ruled out, on the monotonic clock, and what."""
        self._owned = owners
        self._due: list[tuple[float, int, bytes, str, float]] = []
        self._order = itertools.count()

    def _clients(self) -> Iterable[Coroutine[Any, Any, None]]:
        usual = [self._events() for _ in range(16)]
        usual += [self._get("list", LIST) for _ in range(6)]
        usual += [self._get("check", "/api/v1/auth/verify/projects:read") for _ in range(3)]
        for tenant, owner in self._owned.items():
            usual += [self._carry_keys(tenant, owner), self._seat_members(tenant, owner), self._buy(owner)]
        return [*usual, self._knock(), self._operate(), *(self._deliver_again() for _ in range(_REDELIVERIES))]

    # Events

    def _refused(self, body: bytes, event_id: str) -> None:
        self._put_off(body, event_id, _FIRST_PAUSE)

    def _put_off(self, body: bytes, event_id: str, pause: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + pause, next(self._order), body, event_id, pause))

    async def _deliver_again(self) -> None:
        with self._client() as client:
            while not self._is_over or self.notes.sent - self.notes.acknowledged.keys():
                if not self._due or self._due[0][0] > time.monotonic():
                    await asyncio.sleep(_A_MOMENT)
                    continue
                _, _, body, event_id, pause = heapq.heappop(self._due)
                if not await self._deliver("event again", client, body, event_id):
                    self._put_off(body, event_id, min(2 * pause, _LONGEST_PAUSE))

    async def _make_tenant(self, client: Client, tenant: str) -> None:
        wish = {"name": "Late", "ownerEmail": "late@example.com"}
        await self._surely("operator", client, "PUT", f"{TENANTS_PATH}/{tenant}", self._operator, wish)

    # Keys and members

    async def _surely(
        self,
        kind: str,
        client: Client,
        method: str,
        path: str,
        credential: str,
        wish: dict[str, Any] | None = None,
        *,
        once: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """The first definite answer to a request that is sent again and again; ``once`` is its ``Idempotency-Key``."""
        header = f"\r\nIdempotency-Key: {once}" if once else ""
        while True:
            status, answer = await self._told(kind, client, method, path, credential, wish, header)
            if status not in UNDECIDED and answer.get("code") != "idempotency_in_flight":
                return status, answer
            await asyncio.sleep(_A_MOMENT)

    def _note_change(self, action: Action, target: str | None) -> None:
        if target is not None:
            self.told.setdefault((action.value, target), time.monotonic())

    async def _carry_keys(self, tenant: str, owner: str) -> None:
        """Make a key, use it, rotate it, revoke what came of it."""
        with self._client() as client, self._client() as user:
            for number in itertools.count():
                if self._is_over:
                    return
                wish: dict[str, Any] = {"orgId": tenant, "name": KEY_NAME, "scopes": ["projects:read"]}
                once = f"{tenant}-{number}"
                status, made = await self._surely("make key", client, "POST", KEYS, owner, wish, once=f"{once}-made")
                self._note_change(Action.KEY_CREATED, made.get("id"))
                if status != CREATED:
                    await self._revoke(client, owner, made.get("id"), "")
                    continue
                await self._surely("new key", user, "GET", LIST, made["secret"])
                path, wish = f"{KEYS}/{made['id']}/rotate", {"overlapSeconds": 0}
                status, rotated = await self._surely(
                    "rotate key", client, "POST", path, owner, wish, once=f"{once}-rotated"
                )
                if status == CREATED or "id" in rotated:
                    self._note_change(Action.KEY_ROTATED, made["id"])
                    self._note_change(Action.KEY_CREATED, rotated["id"])
                    self.ended.append(made["secret"])
                    await self._surely(REVOKED, user, "GET", LIST, made["secret"])
                if status == CREATED:
                    await self._surely("new key", user, "GET", LIST, rotated["secret"])
                await self._revoke(client, owner, rotated.get("id"), rotated.get("secret", ""))
                await self._rest()

    async def _revoke(self, client: Client, owner: str, key_id: str | None, secret: str) -> None:
        if key_id is None:
            return
        status, _ = await self._surely("revoke key", client, "DELETE", f"{KEYS}/{key_id}", owner)
        if status not in SUCCESSES["revoke key"]:
            return
        self._note_change(Action.KEY_REVOKED, key_id)
        if secret:
            self.ended.append(secret)
            await self._surely(REVOKED, client, "GET", LIST, secret)

    async def _knock(self) -> None:
        """Use keys that were revoked at any time before."""
        with self._client() as user:
            while not self._is_over:
                if self.ended:
                    await self._told(REVOKED, user, "GET", LIST, self._random.choice(self.ended))
                await self._rest()

    async def _seat_members(self, tenant: str, owner: str) -> None:
        """Invite a member, look whether it is there, remove it, and look whether it is gone."""
        with self._client() as client:
            for number in itertools.count():
                if self._is_over:
                    return
                user = f"user-{tenant}-{number}"
                wish = {"userId": user, "role": "member"}
                _, added = await self._surely("add member", client, "POST", _MEMBERS, owner, wish, once=user)
                self._note_change(Action.MEMBER_INVITED, added.get("id"))
                await self._check_seat(client, owner, user, is_there=True)
                if "id" in added:
                    path = f"{_MEMBERS}/{added['id']}"
                    status, _ = await self._surely("remove member", client, "DELETE", path, owner)
                    if status in SUCCESSES["remove member"]:
                        self._note_change(Action.MEMBER_REMOVED, added["id"])
                    await self._check_seat(client, owner, user, is_there=False)
                await self._rest()

    async def _check_seat(self, client: Client, owner: str, user: str, *, is_there: bool) -> None:
        status, page = await self._surely("member", client, "GET", f"{_MEMBERS}?userId={user}", owner)
        if status == OK and bool(page["data"]) is not is_there:
            self.misled.append((time.monotonic(), f"{user} is {'not there' if is_there else 'still there'}"))

    # The provider's API

    async def _buy(self, owner: str) -> None:
        client = Client(self._ports, self._random, _PROVIDER_PATIENCE, host=self._host)
        while not self._is_over:
            await self._told("checkout", client, "POST", _CHECKOUT, owner, {"plan": "pro"})
            for _ in range(_RARELY):
                await self._rest()
        client.close()
