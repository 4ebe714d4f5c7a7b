"""Keys with allowed addresses: a table of proxies and addresses, on sockets as servers know them.

Each gateway sends what the page on gateways configures: the address of its client alone, whatever
the client sent.
"""

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from wsgiref.types import WSGIApplication

import httpx2
import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from tenantry.asgi import AsgiAuthenticator, RequestPrincipal, TenantryAsgiMiddleware, fastapi
from tenantry.domain.errors import AddressNotAllowedError
from tenantry.server.asgi_types import AsgiApp
from tenantry.server.protocol import HttpProtocol
from tenantry.wsgi import TenantryWsgiMiddleware, WsgiAuthenticator, flask
from tests.support.app import make_app
from tests.support.cases import cases
from tests.support.django_project import django_app
from tests.support.in_process import (
    answer_caller,
    answer_wsgi_caller,
    closing_in_thread,
    plain_app,
    tenantry_of,
    threaded_tenantry_of,
)
from tests.support.service import KEYS, VERIFY, WHOAMI, Key, Service, refusal
from tests.support.serving import serving
from tests.support.wsgi import wsgi_client

ALLOWED: Final = ["192.0.2.0/24", "2001:db8::/32"]
REFUSED: Final = (403, "address_not_allowed")
PATHS: Final = [f"{VERIFY}projects:read", WHOAMI]
GATEWAYS: Final = {
    "nginx": "{client}",
    "Caddy": "{client}",
    "Traefik": "{client}",
    "Envoy": "{client}",
    "load balancer that appends": "198.51.100.77, {client}",
    "two trusted proxies": "{client}, 127.0.0.1",
}
"""``X-Forwarded-For`` by the gateway that sends it."""
CLIENTS: Final = {
    "192.0.2.7": True,
    "::ffff:192.0.2.7": True,
    "2001:db8::7": True,
    "2001:DB8:0::7": True,
    "192.0.3.7": False,
    "2001:db9::7": False,
    "fe80::1%eth0": False,
    "2001:db8::7%eth0": False,
    "127.0.0.1": False,
    "unknown": False,
    "_hidden": False,
    "": False,
    "192.0.2.7,": False,
    "192.0.2.7, 203.0.113.9": False,
}
"""Whether a client's address is accepted."""


async def restricted(service: Service, *addresses: str) -> Key:
    org = await service.organization()
    allowed = list(addresses) or ALLOWED
    return await service.key(org.owner, org.id, "projects:read", allowedAddresses=allowed)


def listening(family: int, at: str) -> socket.socket:
    """A socket that takes IPv4 and IPv6 if it is one of IPv6."""
    if family == socket.AF_INET6:
        return socket.create_server((at, 0), family=family, dualstack_ipv6=at == "::")
    if family == socket.AF_UNIX:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(at)
        listener.listen()
        return listener
    return socket.create_server((at, 0))


@asynccontextmanager
async def client_of(
    app: AsgiApp,
    key: Key,
    family: int = socket.AF_INET,
    at: str = "127.0.0.1",
    *,
    to: str = "",
    proxies: str = "127.0.0.1",
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with this key of an application that listens ``at`` an address; it connects ``to``
    another one, if that is given. uvicorn trusts these ``proxies``.
    """
    with listening(family, at) as listener:
        trusted = [text for text in proxies.split(", ") if text]
        async with serving(app, listener, HttpProtocol, proxies=trusted):
            is_unix = family == socket.AF_UNIX
            port = 80 if is_unix else listener.getsockname()[1]
            transport = httpx2.AsyncHTTPTransport(uds=at if is_unix else None)
            async with httpx2.AsyncClient(
                base_url=f"http://{to or ('localhost' if is_unix else at)}:{port}",
                headers={"Authorization": f"Bearer {key.caller.credential}"},
                transport=transport,
            ) as client:
                yield client


def in_process_behind(service: Service, proxies: str) -> AsgiApp:
    return plain_app(tenantry_of(service, TRUSTED_PROXIES=proxies))


def service_behind(service: Service, proxies: str) -> AsgiApp:
    return make_app(service.conninfo, service.clock, TRUSTED_PROXIES=proxies)


@cases("gateway", list(GATEWAYS))
async def test_client_behind_each_gateway(service: Service, gateway: str) -> None:
    key = await restricted(service)
    async with client_of(service_behind(service, "127.0.0.1"), key) as client:
        for address, accepted in CLIENTS.items():
            forwarded = GATEWAYS[gateway].format(client=address).strip()
            for path in PATHS:
                answer = await client.get(path, headers={"X-Forwarded-For": forwarded})
                expected = 200 if accepted else 403
                assert answer.status_code == expected, (address, path, answer.text)
        for path in PATHS:
            assert refusal(await client.get(path)) == REFUSED


async def test_header_that_a_proxy_adds_as_a_line_of_its_own_is_not_the_clients(
    service: Service,
) -> None:
    key = await restricted(service)
    lines = [("X-Forwarded-For", "192.0.2.7"), ("X-Forwarded-For", "203.0.113.9")]
    async with client_of(service_behind(service, "127.0.0.1"), key) as client:
        for path in PATHS:
            assert refusal(await client.get(path, headers=lines)) == REFUSED


@cases(
    ("family", "at", "to", "proxies", "forwarded", "accepted"),
    [
        (socket.AF_INET, "127.0.0.1", "", "", None, True),
        (socket.AF_INET, "127.0.0.1", "", "", "127.0.0.1", False),
        (socket.AF_INET, "127.0.0.1", "", "10.0.0.1", "192.0.2.7", False),
        (socket.AF_INET6, "::1", "[::1]", "", None, True),
        (socket.AF_INET6, "::1", "[::1]", "::1", None, False),
        (socket.AF_INET6, "::1", "[::1]", "::1", "192.0.2.7", True),
        (socket.AF_INET6, "::1", "[::1]", "127.0.0.1", "192.0.2.7", False),
        # an IPv4 peer of a socket for both is a mapped address
        (socket.AF_INET6, "::", "127.0.0.1", "", None, True),
        (socket.AF_INET6, "::", "127.0.0.1", "127.0.0.1", "192.0.2.7", True),
        (socket.AF_INET6, "::", "127.0.0.1", "127.0.0.1", None, False),
        (socket.AF_INET6, "::", "127.0.0.1", "::ffff:127.0.0.1", "192.0.2.7", True),
    ],
)
async def test_peer_of_the_service(
    service: Service,
    family: int,
    at: str,
    to: str,
    proxies: str,
    forwarded: str | None,
    accepted: bool,
) -> None:
    key = await restricted(service, "127.0.0.1", "::1", *ALLOWED)
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    app = service_behind(service, proxies)
    async with client_of(app, key, family, at, to=to, proxies=proxies) as client:
        for path in PATHS:
            answer = await client.get(path, headers=headers)
            assert answer.status_code == (200 if accepted else 403), path


@pytest.mark.parametrize("forwarded", [None, "192.0.2.7", "127.0.0.1"])
async def test_unix_socket_says_no_address(
    service: Service, tmp_path: Path, forwarded: str | None
) -> None:
    key = await restricted(service, "127.0.0.1", *ALLOWED)
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    app = service_behind(service, "127.0.0.1")
    async with client_of(app, key, socket.AF_UNIX, str(tmp_path / "s")) as client:
        for path in PATHS:
            assert refusal(await client.get(path, headers=headers)) == REFUSED


@cases(
    ("proxies", "forwarded", "accepted"),
    [
        ("", None, True),
        ("", "192.0.2.7", False),
        ("127.0.0.1", "192.0.2.7", True),
        ("127.0.0.1", "203.0.113.9", False),
        ("127.0.0.1", "192.0.2.7, 203.0.113.9", False),
        ("127.0.0.1", "unknown", False),
        ("127.0.0.1", None, False),
        ("10.0.0.1", "192.0.2.7", False),
    ],
)
async def test_application_in_process(
    service: Service, proxies: str, forwarded: str | None, accepted: bool
) -> None:
    key = await restricted(service, "127.0.0.1", *ALLOWED)
    app = plain_app(tenantry_of(service, TRUSTED_PROXIES=proxies))
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    async with client_of(app, key, proxies="") as client:
        answer = await client.get("/caller/projects:read", headers=headers)
        assert answer.status_code == (200 if accepted else 403)


def told(mapping: Mapping[str, Any]) -> str | None:
    """The address that an application knows, by a header of its own, of a scope or environment."""
    if "headers" in mapping:
        return dict(mapping["headers"]).get(b"x-real-client", b"").decode() or None
    return mapping.get("HTTP_X_REAL_CLIENT")


def asgi_middleware(tenantry: AsgiAuthenticator) -> AsgiApp:
    return TenantryAsgiMiddleware(
        answer_caller, tenantry=tenantry, owns_lifespan=True, client_address=told
    )


def fastapi_app(tenantry: AsgiAuthenticator) -> FastAPI:
    app = FastAPI(lifespan=tenantry.lifespan)
    fastapi.install(app, tenantry, client_address=told)

    @app.get("/")
    async def caller(principal: Annotated[RequestPrincipal, Depends(fastapi.require())]) -> str:
        return principal.id

    return app


def wsgi_middleware(tenantry: WsgiAuthenticator) -> WSGIApplication:
    return TenantryWsgiMiddleware(answer_wsgi_caller, tenantry=tenantry, client_address=told)


def flask_app(tenantry: WsgiAuthenticator) -> WSGIApplication:
    app = Flask("tests")
    flask.install(app, tenantry, client_address=told)
    app.add_url_rule("/caller/projects:read", "caller", flask.requires()(caller_in_flask))
    return app


def caller_in_flask() -> str:
    return "caller"


def project(tenantry: WsgiAuthenticator) -> WSGIApplication:
    app: WSGIApplication = django_app(tenantry, CLIENT_ADDRESS=told)
    return app


async def check_told_addresses(client: httpx2.AsyncClient, key: Key, path: str) -> None:
    """The application's word counts, whatever the header of a proxy says."""
    for client_address, accepted in (("192.0.2.7", True), ("203.0.113.9", False), (None, False)):
        for forwarded in ("192.0.2.7", "unknown", None):
            headers = {"Authorization": f"Bearer {key.caller.credential}"}
            headers |= {"X-Real-Client": client_address} if client_address else {}
            headers |= {"X-Forwarded-For": forwarded} if forwarded else {}
            answer = await client.get(path, headers=headers)
            assert answer.status_code == (200 if accepted else 403), (client_address, forwarded)


@cases("make", [asgi_middleware, fastapi_app])
async def test_asgi_application_says_the_address(
    service: Service, make: Callable[[AsgiAuthenticator], AsgiApp]
) -> None:
    key = await restricted(service)
    async with client_of(make(tenantry_of(service)), key) as client:
        await check_told_addresses(client, key, "/")


@cases("make", [wsgi_middleware, flask_app, project])
async def test_wsgi_application_says_the_address(
    service: Service, make: Callable[[WsgiAuthenticator], WSGIApplication]
) -> None:
    key = await restricted(service)
    async with (
        closing_in_thread(threaded_tenantry_of(service)) as tenantry,
        wsgi_client(make(tenantry)) as client,
    ):
        await check_told_addresses(client, key, "/caller/projects:read")


async def test_check_in_process_takes_the_address(service: Service) -> None:
    key = await restricted(service)
    headers = [(b"authorization", f"Bearer {key.caller.credential}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    async with tenantry_of(service) as tenantry:
        admitted = await tenantry.admit(scope, client_address=lambda _: "192.0.2.7")
        assert admitted.principal.id == key.id
        with pytest.raises(AddressNotAllowedError):
            await tenantry.admit(scope)
        with pytest.raises(AddressNotAllowedError):
            await tenantry.admit(scope, client_address=lambda _: "192.0.3.7")


async def test_address_that_uvicorn_took_over_is_not_certain(service: Service) -> None:
    key = await restricted(service)
    async with client_of(in_process_behind(service, "127.0.0.1"), key) as client:
        answer = await client.get("/caller/projects:read", headers={"X-Forwarded-For": "192.0.2.7"})
        assert refusal(answer) == REFUSED


@cases(
    ("proxies", "forwarded", "address", "needed"),
    [
        ("", None, "127.0.0.1", None),
        ("", "192.0.2.7", "127.0.0.1", "trusted_proxy"),
        ("127.0.0.1", "203.0.113.9", "203.0.113.9", None),
        ("127.0.0.1", None, "127.0.0.1", "x_forwarded_for"),
    ],
)
async def test_refused_address_is_in_the_log_and_among_the_rejections(
    service: Service,
    caplog: pytest.LogCaptureFixture,
    proxies: str,
    forwarded: str | None,
    address: str,
    needed: str | None,
) -> None:
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    org = await service.organization()
    for make in (service_behind, in_process_behind):
        key = await service.key(org.owner, org.id, "projects:read", allowedAddresses=ALLOWED)
        trusted = proxies if make is service_behind else ""
        async with client_of(make(service, proxies), key, proxies=trusted) as client:
            path = PATHS[0] if make is service_behind else "/caller/projects:read"
            assert refusal(await client.get(path, headers=headers)) == REFUSED
        reason = f"needs {needed}" if needed else "address_not_allowed"
        assert f"API key {key.id} refused from {address}: {reason}" in caplog.messages
        found = (await org.owner.get("/api/v1/rejections", keyId=key.id)).json()["data"]
        assert [(each["address"], each.get("needed")) for each in found] == [(address, needed)]


@cases(
    "addresses", [["127.0.0.1"], ["127.0.0.0/8"], ["192.0.2.7", "10.1.2.3"], ["::ffff:10.1.2.3"]]
)
async def test_list_with_a_trusted_proxy_is_422(service: Service, addresses: list[str]) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "api-keys:*", "a:b")
    app = service_behind(service, "127.0.0.1, 10.0.0.0/8")
    body = {"orgId": org.id, "name": "new", "scopes": ["a:b"], "allowedAddresses": addresses}
    async with client_of(app, key) as client:
        made = await client.post(KEYS, json=body)
        changed = await client.patch(key.path, json={"allowedAddresses": addresses})
        renamed = await client.patch(key.path, json={"name": "renamed"})
        for answer in (made, changed):
            assert refusal(answer) == (422, "validation_failed")
            [error] = answer.json()["errors"]
            assert error["location"] == "allowedAddresses"
            assert "contains the trusted proxy" in error["message"]
        assert renamed.status_code == 200
