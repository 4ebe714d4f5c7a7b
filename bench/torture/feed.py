"""The feed of changes: a follower stores each committed event once and in order, and one for each
acknowledged change.

Eight writers change keys, members, tenants, the name of one tenant that two of them share, and
plans. Meanwhile server processes are killed.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from bench.events import MONTH
from bench.ours import PLANS_WITHOUT_LIMITS
from bench.torture import disturbances as caused
from bench.torture.client import CREATED, OK, LoadClient
from bench.torture.clients import (
    KEYS,
    MEMBERS,
    NO_CONTENT,
    RETRY_PAUSE,
    TENANTS,
    ApiRequest,
    Clients,
    Work,
)
from bench.torture.deployment import OPERATOR, DatabaseKind, Deployment
from bench.torture.feed_checks import SHARED, Change, FeedResult, compare, read_state
from bench.torture.follower import Follower
from bench.torture.report import Report
from bench.torture.run import Run, Subject
from tenantry.domain.outbound_events import EventType
from tests.support import events

_OWN: Final = ("keys0", "keys1", "members0", SHARED)
"""Tenants whose keys, members or name the writers change, each with an OWNER key."""
_PAUSE: Final = 0.1
"""Mean of seconds between two changes of a writer."""
_PRICES: Final = ("price_pro", "price_of_no_plan")
_PLAN_TENANTS: Final = 100
"""How many tenants a writer of plans takes in turn: events of one are of different seconds."""
_RENAMES: Final = 3
_BETWEEN_KILLS: Final = (1.0, 5.0)
"""Bounds in seconds."""
_CATCH_UP: Final = 60.0
"""Seconds for the follower's last events."""
_POLL: Final = 0.1
_HEAD: Final = (
    "run",
    "servers killed",
    "disturbances",
    "acknowledged",
    "committed",
    "followed",
    "missing",
    "lost",
    "twice",
    "out of order",
    "not published",
    "versions reversed",
    "stale at the end",
)


class _Object(NamedTuple):
    """An object that a writer changes: its address, and the credential for it."""

    client: LoadClient
    object_id: str
    path: str
    credential: str


class ChangeWriters(Clients):
    """The writers; `run` returns after `end`, once all of their requests are answered."""

    def __init__(self, site: Deployment, owners: Mapping[str, str], chance: random.Random) -> None:
        """``owners`` are OWNER keys of the tenants `_OWN`."""
        super().__init__(site, chance, _PAUSE)
        self.acknowledged: set[Change] = set()
        self.plan_changes: Counter[str] = Counter()
        """Acknowledged changes of the plan, by tenant."""
        self._owners = owners

    def _work(self) -> Iterable[Coroutine[Any, Any, None]]:
        works: Sequence[Work] = (
            partial(self._change_key, "keys0"),
            partial(self._change_key, "keys1"),
            self._change_member,
            self._change_tenant,
            partial(self._rename_shared, "a"),
            partial(self._rename_shared, "b"),
            partial(self._change_plan, 0),
            partial(self._change_plan, _PLAN_TENANTS),
        )
        return map(self.repeat, works)

    async def _change_key(self, tenant: str, client: LoadClient, number: int) -> None:
        """Create a key, rename it several times, and revoke it."""
        name, owner = f"{tenant}-{number}-0", self._owners[tenant]
        wanted = {"orgId": tenant, "name": name, "scopes": ["projects:read"]}
        key = await self._create(client, KEYS, owner, wanted, name)
        if key is None:
            return
        self.acknowledged.add(Change(EventType.KEY_CREATED, key.object_id, name))
        for step in range(1, 1 + _RENAMES):
            await self.rest()
            name = f"{tenant}-{number}-{step}"
            await self._change(EventType.KEY_UPDATED, key, "PATCH", {"name": name}, name)
        await self._change(EventType.KEY_REVOKED, key, "DELETE", None, name)

    async def _change_member(self, client: LoadClient, number: int) -> None:
        """Invite a member, change the role, and remove the member."""
        user, owner = f"user-{number}", self._owners["members0"]
        wanted = {"userId": user, "role": "member"}
        member = await self._create(client, MEMBERS, owner, wanted, user)
        if member is None:
            return
        self.acknowledged.add(Change(EventType.MEMBER_INVITED, member.object_id))
        await self._change(EventType.MEMBER_UPDATED, member, "PATCH", {"role": "admin"})
        await self._change(EventType.MEMBER_REMOVED, member, "DELETE")

    async def _change_tenant(self, client: LoadClient, number: int) -> None:
        """Create a tenant, rename it, suspend it and end it, as the operator."""
        name = f"made{number}"
        tenant = _Object(client, name, f"{TENANTS}/{name}", OPERATOR)
        for event in (
            EventType.TENANT_CREATED,
            EventType.TENANT_UPDATED,
            EventType.TENANT_SUSPENDED,
        ):
            name = f"{tenant.object_id} {event}"
            wanted = {
                "name": name,
                "ownerEmail": "a@example.com",
                "suspended": event is EventType.TENANT_SUSPENDED,
            }
            await self._change(event, tenant, "PUT", wanted, name)
            await self.rest()
        await self._change(EventType.TENANT_ENDED, tenant, "DELETE", None, name)

    async def _rename_shared(self, writer: str, client: LoadClient, number: int) -> None:
        """Rename the tenant that another writer renames, too."""
        name = f"{writer}-{number}"
        tenant = _Object(client, SHARED, f"{TENANTS}/{SHARED}", self._owners[SHARED])
        await self._change(EventType.TENANT_UPDATED, tenant, "PATCH", {"name": name}, name)

    async def _change_plan(self, first: int, client: LoadClient, number: int) -> None:
        """Let the provider change the plans of tenants in turn, until it is acknowledged."""
        turn, tenant = divmod(number, _PLAN_TENANTS)
        org = f"t{first + tenant}"
        body = events.body(_plan_event(org, _PRICES[turn % len(_PRICES)], number))
        while True:
            if await self.deliver("event", client, body):
                break
            await asyncio.sleep(RETRY_PAUSE)
        self.plan_changes[org] += 1

    async def _change(
        self,
        event: EventType,
        changed: _Object,
        method: str,
        document: Mapping[str, object] | None = None,
        name: str = "",
    ) -> None:
        """Change an object, whose name is this one then; note what is acknowledged."""
        request = ApiRequest("change", method, changed.path, changed.credential, document)
        status, _ = await self.request_until_definite(changed.client, request)
        if status in (OK, CREATED, NO_CONTENT):
            self.acknowledged.add(Change(event, changed.object_id, name))

    async def _create(
        self, client: LoadClient, path: str, owner: str, document: Mapping[str, object], key: str
    ) -> _Object | None:
        """Create an object; None if it is lost with its tenant's state."""
        request = ApiRequest("change", "POST", path, owner, document, key)
        _, made = await self.request_until_definite(client, request)
        return _Object(client, made["id"], f"{path}/{made['id']}", owner) if "id" in made else None


def _plan_event(org: str, price: str, number: int) -> dict[str, Any]:
    now = int(time.time())
    return events.updated(
        event_id=f"evt_feed_{org}_{number}",
        created=now,
        org=org,
        customer=f"cus_{org.removeprefix('t')}",
        subscription_id=f"sub_{org}",
        price=price,
        period_end=now + MONTH,
    )


class FeedRun(Run):
    """Follows the feed beside the writers."""

    def __init__(self, site: Deployment, chance: random.Random) -> None:
        super().__init__(site, chance)
        own = random.Random(chance.random())  # noqa: S311  # no secret
        self._writers = ChangeWriters(site, site.create_tenants(_OWN), own)
        self.loads = [self._writers]
        self._follower = Follower(site, own)
        self._killed = 0

    def beside(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Follow, and kill server processes until the writers have ended."""
        yield self._follower.run()
        yield self._kill()

    async def _kill(self) -> None:
        chance = random.Random(self._chance.random())  # noqa: S311  # no secret
        while True:
            await asyncio.sleep(chance.uniform(*_BETWEEN_KILLS))
            if self._writers.is_over:
                return
            self._killed += await caused.kill_server(self.site, chance)

    async def settle(self) -> None:
        """Wait until the follower has all committed events, or long enough."""
        committed = set((await asyncio.to_thread(read_state, self.site.conninfo)).order)
        deadline = time.monotonic() + _CATCH_UP
        while time.monotonic() < deadline:
            if committed <= {event.id for event in self._follower.events}:
                return
            await asyncio.sleep(_POLL)

    async def report(self) -> Report:
        """Compare the followed events with the committed ones and with what was acknowledged."""
        writers, followed = self._writers, self._follower.events
        state = await asyncio.to_thread(read_state, self.site.conninfo)
        result = compare(state, followed, writers.acknowledged, writers.plan_changes)
        row = [
            self.site.kind,
            f"{self._killed}",
            ", ".join(f"{name}: {len(own)}" for name, own in self.by_disturbance().items()),
            f"{len(writers.acknowledged) + writers.plan_changes.total():,}",
            *(f"{number:,}" for number in result),
        ]
        return Report(_HEAD, [row], [], list(self._violations(result)))

    def _violations(self, result: FeedResult) -> Iterator[str]:
        """Yield broken promises: an asynchronous failover may lose what was acknowledged."""
        yield from self.nothing_killed()
        if self._follower.expired:
            yield f"{self._follower.expired} cursors were answered with 410"
        kept = ["missing", "twice", "unordered"]
        if not any(each.disturbance.loses for each in self.injections):
            kept += ["lost", "unpublished", "reversed", "stale"]
        for name in kept:
            if number := getattr(result, name):
                yield f"{number:,} events are {name}"


_SYNCHRONOUS: Final = (caused.OPEN_TRANSACTION, caused.KILL_DATABASE, caused.FAIL_OVER)
_ASYNCHRONOUS: Final = (caused.FAIL_OVER_BEHIND,)
SUBJECT: Final = Subject(
    FeedRun,
    {DatabaseKind.SYNCHRONOUS: _SYNCHRONOUS, DatabaseKind.ASYNCHRONOUS: _ASYNCHRONOUS},
    {
        "the feed reads past running transactions": (
            DatabaseKind.SYNCHRONOUS,
            (caused.OPEN_TRANSACTION,),
        ),
        "events after a failover are of the former epoch": (
            DatabaseKind.ASYNCHRONOUS,
            _ASYNCHRONOUS,
        ),
    },
    PLANS_WITHOUT_LIMITS,
)
