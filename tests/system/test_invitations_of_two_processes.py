"""Invitations that two server processes accept and withdraw at the same time."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tests.support.deployment import Deployment, add_owner, deployed
from tests.support.issuer import AUDIENCE, CLIENT_ID, Issuer, running_issuer
from tests.support.postgres import PostgresServer, as_url

INVITATIONS: Final = "/api/v1/invitations"
ROUNDS: Final = 20


@pytest.fixture(scope="module")
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
async def deployment(
    postgres: PostgresServer, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    folder: Path = tmp_path_factory.mktemp("deployment")
    settings = {
        "OIDC_ISSUER": issuer.url,
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_CLIENT_ID": CLIENT_ID,
        "INVITATIONS": "true",
        "SMTP_URL": "smtp://127.0.0.1:9",
        "MAIL_FROM": "mail@acme.example",
    }
    with postgres.database() as conninfo:
        address = as_url(conninfo)
        owner = await add_owner(address, folder)
        async with deployed(address, folder, credential=owner, **settings) as deployment:
            yield deployment


async def invite(owner: httpx2.AsyncClient, email: str) -> tuple[str, str]:
    """An address invited; returns the path of the invitation and the token of its link."""
    made = await owner.post(INVITATIONS, json={"email": email, "role": "member"})
    assert made.status_code == 201, made.text
    path = f"{INVITATIONS}/{made.json()['id']}"
    link = await owner.get(f"{path}/link")
    return path, link.json()["url"].partition("=")[2]


def token_of(issuer: Issuer, user: str, email: str) -> str:
    now = int(time.time())
    claims = {"sub": user, "iat": now, "exp": now + 600, "email": email, "email_verified": True}
    return issuer.mint(claims=claims)


async def test_accepting_and_withdrawing_at_once_have_one_order(
    deployment: Deployment, issuer: Issuer
) -> None:
    seen = Counter[tuple[int, int, str, int]]()
    async with deployment.client() as owner:
        for number in range(ROUNDS):
            user, email = f"racer-{number}", f"racer-{number}@x.example"
            path, link = await invite(owner, email)
            async with deployment.client(token_of(issuer, user, email)) as client:
                accepted, withdrawn = await asyncio.gather(
                    client.post(f"{INVITATIONS}/accept", json={"token": link}),
                    owner.delete(path),
                )
            status = (await owner.get(path)).json()["status"]
            members: list[Any] = (
                await owner.get("/api/v1/members", params={"userId": user})
            ).json()["data"]
            seen[accepted.status_code, withdrawn.status_code, status, len(members)] += 1
    assert set(seen) <= {(200, 409, "accepted", 1), (409, 204, "withdrawn", 0)}, seen


async def test_20_acceptances_in_both_processes_make_one_membership(
    deployment: Deployment, issuer: Issuer
) -> None:
    email = "impatient@x.example"
    async with (
        deployment.client() as owner,
        deployment.client(token_of(issuer, "impatient", email)) as client,
    ):
        _, link = await invite(owner, email)
        answers = await asyncio.gather(
            *(client.post(f"{INVITATIONS}/accept", json={"token": link}) for _ in range(20))
        )
        members = await owner.get("/api/v1/members", params={"userId": "impatient"})
    assert Counter(answer.status_code for answer in answers) == {200: 20}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(members.json()["data"]) == 1
