"""An outage of the identity provider: its effect on clients and on the provider."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx2
import pytest

from tenantry.app import build_app
from tenantry.integrations.oidc.keys import COOLDOWN_SECONDS
from tests.support import figures
from tests.support.app import OPERATOR_TOKEN, client_of, lifespan, make_settings
from tests.support.figures import RecordProperty
from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    DISCOVERY,
    JWKS,
    Issuer,
    running_issuer,
    signing_key,
)
from tests.support.service import PROJECTS, TENANTS, VERIFY, Caller, ManualClock, refusal

REQUESTS = 100
ROUNDS = 5
NEW = signing_key("ES256", "new")


class Seconds:
    """The service's monotonic clock, which only the test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Outage(NamedTuple):
    """The service, which has the keys, and its provider, which is about to go away."""

    client: httpx2.AsyncClient
    issuer: Issuer
    seconds: Seconds

    def user(self, kid: str = "rsa-1", sub: str = "user_1") -> Caller:
        """A user's token whose header names this key; a published key signed it."""
        return Caller(
            self.client,
            self.issuer.mint(header={"kid": kid}, claims={"sub": sub, "org_id": "acme"}),
        )

    async def failed_once(self) -> None:
        """The provider is away, and the service has found that out."""
        await self.issuer.stop()
        self.seconds.now += COOLDOWN_SECONDS
        assert refusal(await self.user("unknown").get(PROJECTS)) == (503, "auth_unavailable")


@pytest.fixture
async def outage(conninfo: str) -> AsyncIterator[Outage]:
    seconds = Seconds()
    async with running_issuer() as issuer:
        settings = make_settings(
            OIDC_ISSUER=issuer.url, OIDC_AUDIENCE=AUDIENCE, OIDC_CLIENT_ID=CLIENT_ID
        )
        app = build_app(settings, conninfo, ManualClock(), seconds)
        async with lifespan(app), client_of(app) as client:
            operator = Caller(client, OPERATOR_TOKEN)
            await operator.put(
                f"{TENANTS}/acme", {"name": "Acme", "ownerEmail": "owner@acme.example"}
            )
            yield Outage(client, issuer, seconds)


@pytest.mark.parametrize(
    "users", [1, REQUESTS], ids=["one token, known by then", "a new token each time"]
)
async def test_known_keys_are_served_without_the_provider(
    outage: Outage, users: int, record_property: RecordProperty
) -> None:
    await outage.failed_once()
    people = [outage.user(sub=f"user_{number}") for number in range(users)]
    refused = 0
    for number in range(REQUESTS):
        route = (PROJECTS, f"{VERIFY}projects:read")[number % 2]
        refused += not (await people[number % users].get(route)).is_success
    figures.record(
        record_property,
        "tokens of known keys, provider away",
        {"requests": REQUESTS},
        {"refused": refused},
    )
    assert refused == 0
    assert outage.issuer.fetches[JWKS] == 1


async def test_unknown_keys_are_an_outage_and_ask_once_a_cool_down(
    outage: Outage, record_property: RecordProperty
) -> None:
    """The provider hangs up on everybody, so that every attempt to reach it is seen."""
    await outage.failed_once()
    known = outage.user()
    outage.issuer.hangs_up = True
    await outage.issuer.start()
    before, most = outage.issuer.connections, 0
    for cool_down in range(1, ROUNDS + 1):
        outage.seconds.now += COOLDOWN_SECONDS
        for number in range(REQUESTS // ROUNDS):
            answer = await outage.user(f"unknown-{number}").get(PROJECTS)
            assert refusal(answer) == (503, "auth_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert (await known.get(PROJECTS)).status_code == 200
        most = outage.issuer.connections - before
        assert most <= cool_down
    figures.record(
        record_property,
        "tokens of unknown keys, provider away",
        {"requests": REQUESTS, "cool-downs": ROUNDS, "fetches": most},
        {"accepted": 0},
    )
    assert most >= 1


async def test_unknown_keys_are_answered_while_the_provider_hangs(outage: Outage) -> None:
    """No request waits for the one fetch that is in progress all the time: it is never answered."""
    await outage.failed_once()
    outage.issuer.open.clear()
    await outage.issuer.start()
    outage.seconds.now += COOLDOWN_SECONDS
    before = outage.issuer.fetches[DISCOVERY]
    for number in range(100):
        assert refusal(await outage.user(f"unknown-{number}").get(PROJECTS)) == (
            503,
            "auth_unavailable",
        )
    await outage.issuer.until_fetched(DISCOVERY, before + 1)
    assert (await outage.user().get(PROJECTS)).status_code == 200
    assert outage.issuer.fetches[DISCOVERY] == before + 1


async def test_the_request_that_brings_a_new_key_is_served_by_a_healthy_provider(
    outage: Outage,
) -> None:
    outage.issuer.keys.append(NEW)
    outage.seconds.now += COOLDOWN_SECONDS
    user = Caller(outage.client, outage.issuer.mint(NEW, claims={"org_id": "acme"}))
    assert (await user.get(PROJECTS)).status_code == 200


async def test_all_requests_that_bring_a_new_key_are_served_after_one_fetch(outage: Outage) -> None:
    outage.issuer.keys.append(NEW)
    outage.seconds.now += COOLDOWN_SECONDS
    users = [
        Caller(outage.client, outage.issuer.mint(NEW, claims={"org_id": "acme"}))
        for _ in range(100)
    ]
    answers = await asyncio.gather(*(user.get(PROJECTS) for user in users))
    assert {answer.status_code for answer in answers} == {200}
    assert outage.issuer.fetches[JWKS] == 2


async def test_an_unknown_key_is_an_invalid_token_while_the_provider_is_healthy(
    outage: Outage,
) -> None:
    outage.seconds.now += COOLDOWN_SECONDS
    for _ in range(10):
        assert refusal(await outage.user("made-up").get(PROJECTS)) == (401, "invalid_credential")
    assert outage.issuer.fetches[JWKS] == 2


async def test_a_withdrawn_key_ends_with_the_next_fetch_also_for_known_tokens(
    outage: Outage,
) -> None:
    user = outage.user()
    assert (await user.get(PROJECTS)).status_code == 200
    outage.issuer.keys = [NEW]
    outage.seconds.now += COOLDOWN_SECONDS
    newcomer = Caller(outage.client, outage.issuer.mint(NEW, claims={"org_id": "acme"}))
    assert (await newcomer.get(PROJECTS)).status_code == 200
    assert refusal(await user.get(PROJECTS)) == (401, "invalid_credential")
