"""The identity headers that the application receives come from tenantry, never from the client."""

from typing import Final

import pytest

from tests.support.gateways import EXTERNAL_ID, IDENTITY, Gateway, ServiceBehindGateway, refused
from tests.support.service import Organization

SPOOFED: Final = "org-of-another-user"


async def test_application_gets_the_callers_identity(
    gateway: Gateway, org: Organization, owner: str
) -> None:
    answer = await gateway.send("GET", "/projects/7?full=yes", credential=owner)
    assert (answer.status, answer.body, answer.header("x-from")) == (
        200,
        b"the application",
        "application",
    )
    request = gateway.application.only()
    assert (request.method, request.target) == ("GET", "/projects/7?full=yes")
    assert request.identity() == {
        "x-tenant-id": [org.id],
        "x-principal-id": [org.key.id],
        "x-principal-kind": ["api_key"],
        "x-mode": ["live"],
        "x-plan": ["free"],
        "x-subscription-status": ["none"],
        "x-access": ["none"],
        "x-effective-plan": ["free"],
        "x-features": ["exports"],
    }


async def test_application_gets_the_external_id_of_the_key(
    gateway: Gateway, behind: ServiceBehindGateway, org: Organization
) -> None:
    key = await behind.service.key(org.owner, org.id, "projects:read", externalId="cus_4711")
    spoofed = (EXTERNAL_ID, SPOOFED)
    answer = await gateway.send("GET", "/projects", spoofed, credential=key.caller.credential)
    assert answer.status == 200
    assert gateway.application.only().values("x-key-external-id") == ["cus_4711"]


async def test_credential_does_not_reach_the_application(gateway: Gateway, owner: str) -> None:
    await gateway.send("GET", "/projects", ("X-Organization-Id", SPOOFED), credential=owner)
    request = gateway.application.only()
    assert owner not in str(request)
    assert request.values("authorization") == request.values("x-organization-id") == []


async def test_request_has_one_id_everywhere(gateway: Gateway, owner: str) -> None:
    await gateway.send("GET", "/projects", ("X-Request-Id", "of-the-client"), credential=owner)
    [asked] = gateway.line.requests()
    assert asked.values("x-request-id") == gateway.application.only().values("x-request-id")
    assert asked.values("x-request-id") != ["of-the-client"]


SPOOFS: Final = {
    "as they are": [(name, SPOOFED) for name in IDENTITY],
    "in capitals": [(name.upper(), SPOOFED) for name in IDENTITY],
    "in lower case": [(name.lower(), SPOOFED) for name in IDENTITY],
    "twice": [(name, SPOOFED) for name in IDENTITY for _ in range(2)],
    "with underscores": [(name.replace("-", "_"), SPOOFED) for name in IDENTITY],
    "with one underscore": [(name.replace("-", "_", 1), SPOOFED) for name in IDENTITY],
    "with the other underscore": [("_".join(name.rsplit("-", 1)), SPOOFED) for name in IDENTITY],
    "with underscores, in capitals": [
        (name.replace("-", "_").upper(), SPOOFED) for name in IDENTITY
    ],
    **{
        f"with {character}": [(name.replace("-", character), SPOOFED) for name in IDENTITY]
        for character in "!#$%&'*+.^`|~"  # all others that a header's name may have
    },
    "empty": [(name, "") for name in IDENTITY],
    "named as of this connection": [
        *((name, SPOOFED) for name in IDENTITY),
        ("Connection", ", ".join(IDENTITY)),
    ],
}


@pytest.mark.parametrize("headers", SPOOFS.values(), ids=SPOOFS)
async def test_clients_identity_headers_do_not_reach_the_application(
    gateway: Gateway, org: Organization, owner: str, headers: list[tuple[str, str]]
) -> None:
    assert (await gateway.send("GET", "/projects", *headers, credential=owner)).status == 200
    identity = gateway.application.only().identity()
    assert sorted(identity) == sorted(name.lower() for name in IDENTITY if name != EXTERNAL_ID)
    assert all(len(values) == 1 for values in identity.values())
    assert identity["x-tenant-id"] == [org.id]
    assert SPOOFED not in str(gateway.application.only())


@pytest.mark.parametrize("headers", SPOOFS.values(), ids=SPOOFS)
async def test_client_identity_headers_are_removed_on_public_paths_too(
    gateway: Gateway, headers: list[tuple[str, str]]
) -> None:
    assert (await gateway.send("GET", "/status", *headers)).status == 200
    assert gateway.application.only().identity() == {}
    assert gateway.line.requests() == []


async def test_nor_do_they_after_the_body(gateway: Gateway, owner: str) -> None:
    body = "2\r\n{}\r\n0\r\n" + "".join(f"{name}: {SPOOFED}\r\n" for name in IDENTITY) + "\r\n"
    headers = [("Transfer-Encoding", "chunked"), ("Trailer", ", ".join(IDENTITY))]
    answer = await gateway.send(
        "POST", "/projects", *headers, credential=owner, trailing=body.encode()
    )
    assert answer.status == 200
    assert SPOOFED not in str(gateway.application.only())
    assert gateway.application.only().body == 2


async def test_user_of_several_tenants_names_one(
    gateway: Gateway, behind: ServiceBehindGateway
) -> None:
    user = behind.service.user("of-several")
    ids = []
    for name in ("One", "Two"):
        made = await user.post("/api/v1/tenants", {"name": name, "ownerEmail": "a@x.example"})
        assert made.status_code == 201, made.text
        ids.append(made.json()["id"])
    refused(
        await gateway.send("GET", "/projects", credential=user.credential), 403, "no_organization"
    )
    for org in ids:
        named = ("X-Organization-Id", org)
        assert (
            await gateway.send("GET", "/projects", named, credential=user.credential)
        ).status == 200
    wanted = [{"x-tenant-id": [org], "x-principal-id": ["of-several"]} for org in ids]
    seen = [request.identity() for request in gateway.application.received]
    assert [{name: identity[name] for name in wanted[0]} for identity in seen] == wanted
