"""What holds for callers of every application that authenticates in its own process."""

from collections.abc import Collection, Iterable
from typing import Final

import httpx2

from tests.support.in_process import owner_and_reader
from tests.support.service import Caller, Organization, Service, refusal

SCOPE_TABLE: Final = {
    ("GET", "/projects/"): "projects:read",
    ("POST", "/projects/"): "projects:write",
    ("GET", "/me"): None,
}


def header_of(caller: Caller) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {caller.credential}".encode())]


async def reader_of(service: Service, org: Organization) -> Caller:
    return (await service.key(org.owner, org.id, "projects:read")).caller


async def check_readable_projects(
    service: Service, client: httpx2.AsyncClient
) -> tuple[Caller, Caller]:
    """Check who may list projects, and with which headers; return a new owner and reader."""
    owner, reader = await owner_and_reader(service, client)
    for caller in (owner, reader):
        answer = await caller.get("/projects")
        assert answer.status_code == 200
        assert {"x-request-id", "ratelimit"} <= set(answer.headers)
    assert refusal(await Caller(client, None).get("/projects")) == (401, "missing_credential")
    return owner, reader


async def check_public_path(client: httpx2.AsyncClient, answer: object) -> None:
    """Check that a path without a requirement ignores credentials."""
    for headers in ({}, {"authorization": "Bearer nonsense"}):
        got = await client.get("/health", headers=headers)
        assert (got.status_code, got.json()) == (200, answer)
        assert "x-request-id" in got.headers


async def check_counted_once(caller: Caller) -> list[httpx2.Response]:
    """Check that each of three requests counts once for the rate limit; return the answers."""
    answers = [await caller.get("/projects") for _ in range(3)]
    left = [
        int(answer.headers["ratelimit"].partition("r=")[2].partition(";")[0]) for answer in answers
    ]
    assert left == [left[0], left[0] - 1, left[0] - 2]
    return answers


async def check_modes(
    client: httpx2.AsyncClient, callers: Iterable[tuple[str, Caller]], accepted: Collection[str]
) -> None:
    """Check that callers of the accepted modes are accepted, and no others."""
    for mode, caller in callers:
        answer = await client.get("/a", headers=header_of(caller))
        if mode in accepted:
            assert (answer.status_code, answer.json()["mode"]) == (200, mode)
        else:
            assert refusal(answer) == (403, "mode_mismatch")


async def check_optional_credential(client: httpx2.AsyncClient, org: Organization) -> None:
    """Check that a request may have no credential, and none that is invalid."""
    assert (await client.get("/a")).json()["caller"] is None
    assert (await client.get("/a", headers=header_of(org.owner))).json()["caller"] == org.key.id
    for credential, code in (("Bearer x", "invalid_credential"), ("", "missing_credential")):
        answer = await client.get("/a", headers={"authorization": credential})
        assert refusal(answer) == (401, code)


async def check_optional_key_in_its_header(client: httpx2.AsyncClient, org: Organization) -> None:
    """Check the same for a key in ``X-API-Key``."""
    assert (await client.get("/a")).json()["caller"] is None
    key = {"x-api-key": str(org.owner.credential)}
    assert (await client.get("/a", headers=key)).json()["caller"] == org.key.id
    for credential, code in (("x", "invalid_credential"), ("", "missing_credential")):
        answer = await client.get("/a", headers={"x-api-key": credential})
        assert refusal(answer) == (401, code)
