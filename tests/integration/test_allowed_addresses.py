"""Keys that may be used from certain addresses only."""

from contextlib import nullcontext
from typing import Final

import httpx2
import pytest

from tenantry.server.protocol import HttpProtocol
from tenantry_sdk import AsyncTenantry
from tenantry_sdk.errors import PermissionDeniedError
from tests.support.app import make_app
from tests.support.cases import cases
from tests.support.in_process import (
    DJANGO,
    DJANGO_ASGI,
    FASTAPI,
    FLASK,
    MIDDLEWARE,
    SERVICE,
    WSGI,
    running_app,
)
from tests.support.service import (
    KEYS,
    PROJECTS,
    VERIFY,
    WHOAMI,
    Service,
    refusal,
)
from tests.support.serving import served

LOCAL: Final = ["127.0.0.1"]
CLIENTS: Final = ["127.0.0.1", "203.0.113.9"]
"""The addresses of the tests' clients, in ASGI and WSGI."""
ELSEWHERE: Final = ["192.0.2.0/24"]
REFUSED: Final = (403, "address_not_allowed")
ESCALATION: Final = (403, "scope_escalation")


@cases("kind", [SERVICE, MIDDLEWARE, FASTAPI, WSGI, FLASK, DJANGO, DJANGO_ASGI])
async def test_key_is_refused_elsewhere_by_every_road(service: Service, kind: str) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", allowedAddresses=ELSEWHERE)
    async with running_app(kind, service) as app:
        caller = app.caller(key.caller.credential)
        assert refusal(await caller.get(app.path())) == REFUSED
        changed = await org.owner.patch(key.path, {"allowedAddresses": CLIENTS})
        assert changed.json()["allowedAddresses"] == CLIENTS
        assert (await caller.get(app.path())).status_code == 200
        await org.owner.patch(key.path, {"allowedAddresses": ELSEWHERE})
        assert refusal(await caller.get(app.path())) == REFUSED
        await org.owner.patch(key.path, {"allowedAddresses": None})
        assert (await caller.get(app.path())).status_code == 200


@cases("path", [WHOAMI, PROJECTS, f"{VERIFY}projects:read", KEYS])
async def test_every_route_refuses_the_key(service: Service, path: str) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "*:*", allowedAddresses=ELSEWHERE)
    assert refusal(await key.caller.get(path)) == REFUSED
    shown = (await org.owner.get(key.path)).json()
    assert shown["lastUsedAt"] is None


@cases(
    ("forwarded", "status"),
    [
        ("192.0.2.7", 200),
        ("192.0.2.7:49152", 200),
        ("192.0.2.8, 127.0.0.1", 200),
        ("192.0.2.7, 198.51.100.1", 403),
        ("198.51.100.1", 403),
        ("unknown", 403),
        ("127.0.0.1", 403),
        (None, 403),
    ],
)
async def test_address_behind_a_trusted_proxy(
    service: Service, forwarded: str | None, status: int
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", allowedAddresses=ELSEWHERE)
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    headers["Authorization"] = f"Bearer {key.caller.credential}"
    app = make_app(service.conninfo, service.clock, TRUSTED_PROXIES="127.0.0.1")
    async with (
        served(app, http=HttpProtocol) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        for path in (PROJECTS, f"{VERIFY}projects:read", WHOAMI):
            assert (await client.get(path, headers=headers)).status_code == status, path


@cases(
    ("trusted", "client_address", "is_allowed"),
    [
        ("", None, False),
        ("127.0.0.1", None, False),
        ("127.0.0.1", "127.0.0.1:8000", False),
        ("127.0.0.1", "198.51.100.1", False),
        ("127.0.0.1", "192.0.2.7", True),
    ],
)
async def test_address_of_an_sdks_check(
    service: Service, trusted: str, client_address: str | None, is_allowed: bool
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b", allowedAddresses=[*LOCAL, *ELSEWHERE])
    headers = {"Authorization": f"Bearer {key.caller.credential}"}
    app = make_app(service.conninfo, service.clock, TRUSTED_PROXIES=trusted)
    async with (
        served(app, http=HttpProtocol) as address,
        AsyncTenantry(base_url=address) as client,
    ):
        check = client.auth.verify(headers, "a:b", client_address=client_address)
        with nullcontext() if is_allowed else pytest.raises(PermissionDeniedError):
            await check


async def test_proxies_before_the_service_keep_an_unknown_client_unknown(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b", allowedAddresses=ELSEWHERE)
    headers = {
        "Authorization": f"Bearer {key.caller.credential}",
        "X-Forwarded-For": "unknown, 192.0.2.7",
    }
    app = make_app(service.conninfo, service.clock, TRUSTED_PROXIES="127.0.0.1")
    async with (
        served(app, http=HttpProtocol) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        assert refusal(await client.get(f"{VERIFY}a:b", headers=headers)) == REFUSED


async def test_header_of_an_untrusted_peer_refuses_the_key(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", allowedAddresses=LOCAL)
    for path in (PROJECTS, WHOAMI):
        assert (await key.caller.get(path)).status_code == 200
        forged = service.caller(key.caller.credential, **{"X-Forwarded-For": "127.0.0.1"})
        assert refusal(await forged.get(path)) == REFUSED


async def test_revoked_key_is_refused_as_revoked_first(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", allowedAddresses=ELSEWHERE)
    await org.owner.delete(key.path)
    assert refusal(await key.caller.get(WHOAMI)) == (401, "api_key_revoked")


async def test_key_makes_changes_and_rotates_none_that_more_addresses_may_use(
    service: Service,
) -> None:
    org = await service.organization()
    writer = await service.key(
        org.owner, org.id, "api-keys:*", "projects:read", allowedAddresses=["127.0.0.0/8"]
    )
    body = {"orgId": org.id, "name": "new", "scopes": ["projects:read"]}
    for wider in (None, [], ["0.0.0.0/0"], ["127.0.0.1", "192.0.2.7"]):
        answer = await writer.caller.post(KEYS, {**body, "allowedAddresses": wider})
        assert refusal(answer) == ESCALATION
        assert refusal(await writer.caller.patch(writer.path, {"allowedAddresses": wider})) == (
            ESCALATION
        )
    other = await service.key(org.owner, org.id, "projects:read")
    assert refusal(await writer.caller.post(f"{other.path}/rotate")) == ESCALATION
    made = await service.key(writer.caller, org.id, "projects:read", allowedAddresses=LOCAL)
    narrowed = await writer.caller.patch(writer.path, {"allowedAddresses": LOCAL})
    rotated = await writer.caller.post(f"{made.path}/rotate")
    assert (narrowed.status_code, rotated.status_code) == (200, 201)
    assert rotated.json()["allowedAddresses"] == LOCAL


async def test_list_is_stored_in_one_form_and_audited(service: Service) -> None:
    org = await service.organization()
    key = await service.key(
        org.owner, org.id, "projects:read", allowedAddresses=["::ffff:192.0.2.7", "2001:DB8::/32"]
    )
    assert key.record["allowedAddresses"] == ["192.0.2.7", "2001:db8::/32"]
    await org.owner.patch(key.path, {"allowedAddresses": LOCAL})
    events = (await org.owner.get(f"/api/v1/audit-events?targetId={key.id}")).json()["data"]
    assert events[0]["before"]["allowedAddresses"] == ["192.0.2.7", "2001:db8::/32"]
    assert events[0]["after"]["allowedAddresses"] == LOCAL


@cases("addresses", [["192.0.2.7/24"], ["fe80::1%eth0"], ["example.com"], ["192.0.2.7"] * 33, [7]])
async def test_faulty_list_is_422(service: Service, addresses: list[object]) -> None:
    org = await service.organization()
    body = {"orgId": org.id, "name": "new", "scopes": ["a:b"], "allowedAddresses": addresses}
    key = await service.key(org.owner, org.id, "a:b")
    for answer in (
        await org.owner.post(KEYS, body),
        await org.owner.patch(key.path, {"allowedAddresses": addresses}),
    ):
        assert refusal(answer) == (422, "validation_failed")
        assert answer.json()["errors"][0]["location"].startswith("allowedAddresses")
