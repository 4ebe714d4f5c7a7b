"""Eight writers: keys, members, tenants, names of one tenant that all share, and plans.

Each repeats a request until its answer is definite.
"""

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from bench.events import MONTH, sign
from bench.faults.client import CREATED, OK, LoadClient
from bench.faults.deployment import OPERATOR
from bench.faults.load import INDEFINITE
from bench.support import SECRET
from tenantry.domain.outbound_events import EventType
from tests.support import events

OWN: Final = ("keys0", "keys1", "members0", "shared")
"""Tenants whose keys, members or name the writers change, each with an OWNER key."""
SHARED: Final = "shared"
_KEYS: Final = "/api/v1/api-keys"
_MEMBERS: Final = "/api/v1/members"
_TENANTS: Final = "/api/v1/tenants"
_WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
_PLANS: Final = ("price_pro", "price_of_no_plan")
_PLAN_TENANTS: Final = 100
"""How many tenants a writer of plans takes in turn: events of one are of different seconds."""
_RETRY_PAUSE: Final = 0.1
_NO_CONTENT: Final = 204
_RENAMES: Final = 3


class Change(NamedTuple):
    """A change that was acknowledged: its event's type, and the object's id and name after it."""

    type: str
    object_id: str
    name: str = ""


class ChangeWriters:
    """The writers; `run` returns after `end`, once all of their requests are answered."""

    def __init__(
        self,
        ports: Sequence[int],
        owners: Mapping[str, str],
        chance: random.Random,
        pause: float,
    ) -> None:
        """``owners`` are OWNER keys of the tenants `OWN`; ``pause`` is the mean of seconds between
        a writer's changes.
        """
        self.acknowledged: set[Change] = set()
        self.plan_changes: Counter[str] = Counter()
        """Acknowledged changes of the plan, by tenant."""
        self._ports = ports
        self._owners = owners
        self._chance = chance
        self._pause = pause
        self._is_over = False

    async def run(self) -> None:
        """Run all writers."""
        async with asyncio.TaskGroup() as group:
            for writer in self._writers():
                group.create_task(writer)

    def end(self) -> None:
        """Begin no new change."""
        self._is_over = True

    def _writers(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._change_keys("keys0")
        yield self._change_keys("keys1")
        yield self._change_members("members0")
        yield self._change_tenants()
        yield self._rename_shared("a")
        yield self._rename_shared("b")
        yield self._change_plans(0)
        yield self._change_plans(_PLAN_TENANTS)

    def _numbers(self) -> Iterator[int]:
        return itertools.takewhile(lambda _: not self._is_over, itertools.count())

    async def _change_keys(self, tenant: str) -> None:
        """Create a key, rename it several times, and revoke it."""
        owner = self._owners[tenant]
        with self._client() as client:
            for number in self._numbers():
                name = f"{tenant}-{number}-0"
                wanted = {"orgId": tenant, "name": name, "scopes": ["projects:read"]}
                status, key = await self._send(client, "POST", _KEYS, owner, wanted, name)
                if "id" not in key:  # lost with its tenant's state
                    continue
                path = f"{_KEYS}/{key['id']}"
                self._note(EventType.KEY_CREATED, key["id"], name, is_done=True)
                for step in range(1, 1 + _RENAMES):
                    await self._rest()
                    name = f"{tenant}-{number}-{step}"
                    status, _ = await self._send(client, "PATCH", path, owner, {"name": name})
                    self._note(EventType.KEY_UPDATED, key["id"], name, is_done=status == OK)
                status, _ = await self._send(client, "DELETE", path, owner)
                self._note(EventType.KEY_REVOKED, key["id"], name, is_done=status == _NO_CONTENT)
                await self._rest()

    async def _change_members(self, tenant: str) -> None:
        """Invite a member, change the role, and remove the member."""
        owner = self._owners[tenant]
        with self._client() as client:
            for number in self._numbers():
                user = f"user-{number}"
                wanted = {"userId": user, "role": "member"}
                _, member = await self._send(client, "POST", _MEMBERS, owner, wanted, user)
                if "id" not in member:
                    continue
                path = f"{_MEMBERS}/{member['id']}"
                self._note(EventType.MEMBER_INVITED, member["id"], is_done=True)
                status, _ = await self._send(client, "PATCH", path, owner, {"role": "admin"})
                self._note(EventType.MEMBER_UPDATED, member["id"], is_done=status == OK)
                status, _ = await self._send(client, "DELETE", path, owner)
                self._note(EventType.MEMBER_REMOVED, member["id"], is_done=status == _NO_CONTENT)
                await self._rest()

    async def _change_tenants(self) -> None:
        """Create a tenant, rename it, suspend it and end it, as the operator."""
        with self._client() as client:
            for number in self._numbers():
                tenant = f"made{number}"
                path = f"{_TENANTS}/{tenant}"
                name = tenant
                for event in (
                    EventType.TENANT_CREATED,
                    EventType.TENANT_UPDATED,
                    EventType.TENANT_SUSPENDED,
                ):
                    name = f"{tenant} {event}"
                    wanted = {
                        "name": name,
                        "ownerEmail": "a@example.com",
                        "suspended": event is EventType.TENANT_SUSPENDED,
                    }
                    status, _ = await self._send(client, "PUT", path, OPERATOR, wanted)
                    self._note(event, tenant, name, is_done=status in (OK, CREATED))
                    await self._rest()
                status, _ = await self._send(client, "DELETE", path, OPERATOR)
                self._note(EventType.TENANT_ENDED, tenant, name, is_done=status == _NO_CONTENT)

    async def _rename_shared(self, writer: str) -> None:
        """Rename the tenant that another writer renames, too."""
        owner = self._owners[SHARED]
        with self._client() as client:
            for number in self._numbers():
                wanted = {"name": f"{writer}-{number}"}
                path = f"{_TENANTS}/{SHARED}"
                status, _ = await self._send(client, "PATCH", path, owner, wanted)
                self._note(EventType.TENANT_UPDATED, SHARED, wanted["name"], is_done=status == OK)
                await self._rest()

    async def _change_plans(self, first: int) -> None:
        """Let the provider change the plans of tenants in turn."""
        with self._client() as client:
            for number in self._numbers():
                turn, tenant = divmod(number, _PLAN_TENANTS)
                org = f"t{first + tenant}"
                body = events.body(_plan_event(org, _PLANS[turn % len(_PLANS)], number))
                await self._deliver(client, body)
                self.plan_changes[org] += 1
                await self._rest()

    async def _deliver(self, client: LoadClient, body: bytes) -> None:
        """Repeat an event until it is acknowledged."""
        while True:
            signature = f"Provider-Signature: {sign(body, SECRET)}"
            answer = await client.send("POST", _WEBHOOK, signature, body)
            if answer.status == OK:
                return
            await asyncio.sleep(_RETRY_PAUSE)

    async def _send(
        self,
        client: LoadClient,
        method: str,
        path: str,
        credential: str,
        document: Mapping[str, object] | None = None,
        idempotency_key: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """Repeat a request until its answer is definite; return the status and the object."""
        header = f"Authorization: Bearer {credential}"
        if idempotency_key:
            header += f"\r\nIdempotency-Key: {idempotency_key}"
        body = b"" if document is None else json.dumps(document).encode()
        while True:
            answer = await client.send(method, path, header, body)
            content = json.loads(answer.body) if answer.body.startswith(b"{") else {}
            is_pending = content.get("code") == "idempotency_in_flight"
            if answer.status not in INDEFINITE and not is_pending:
                return answer.status, content
            await asyncio.sleep(_RETRY_PAUSE)

    def _note(self, event: EventType, object_id: str, name: str = "", *, is_done: bool) -> None:
        if is_done:
            self.acknowledged.add(Change(event, object_id, name))

    def _client(self) -> AbstractContextManager[LoadClient]:
        return contextlib.closing(LoadClient(self._ports, self._chance))

    async def _rest(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / self._pause))


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
