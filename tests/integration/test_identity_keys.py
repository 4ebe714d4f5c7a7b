"""The provider's keys: fetched over HTTP, kept during outages, and fetched at a bounded rate."""

import asyncio
import contextlib
import gzip
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import httpx2
import pytest

from tenantry.db.background import BackgroundGroup
from tenantry.domain.errors import AuthUnavailableError
from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import (
    COOLDOWN_SECONDS,
    MAX_STALENESS_SECONDS,
    REFRESH_SECONDS,
    KeySet,
)
from tests.support.cases import cases
from tests.support.issuer import (
    AUDIENCE,
    DISCOVERY,
    JWKS,
    Answer,
    Issuer,
    running_issuer,
    signing_key,
)
from tests.support.patience import patient_keys

Answered = TypeVar("Answered")

OLD = signing_key("RS256", "rsa-1")
NEW = signing_key("ES256", "ec-1")


class Seconds:
    """A monotonic clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer(OLD) as running:
        yield running


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@contextlib.asynccontextmanager
async def key_set(
    url: str, monotonic: Callable[[], float] | None = None, refresh_seconds: float = REFRESH_SECONDS
) -> AsyncIterator[KeySet]:
    async with httpx2.AsyncClient(verify=False) as client:
        config = OidcConfig(Issuers(url), (AUDIENCE,))
        keys = patient_keys(
            config, client, monotonic=monotonic or Seconds(), refresh_seconds=refresh_seconds
        )
        try:
            yield keys
        finally:
            await keys.aclose()


@pytest.fixture
async def keys(issuer: Issuer, seconds: Seconds) -> AsyncIterator[KeySet]:
    """The issuer's keys, fetched once."""
    async with key_set(issuer.url, seconds) as started:
        await started.refresh()
        yield started


@contextlib.asynccontextmanager
async def refreshing(keys: KeySet) -> AsyncIterator[None]:
    """Refresh the keys in the background."""
    async with BackgroundGroup() as group:
        group.repeat("refreshes", keys.refresh_if_due, every=keys.pause)
        yield


async def kids(keys: KeySet, kid: str | None, alg: str) -> list[str | None]:
    return [key.kid for key in await keys.key(kid, alg)]


async def at_once(answer: Awaitable[Answered]) -> Answered:
    """Return the result of a coroutine that must not wait."""
    async with asyncio.timeout(0):
        return await answer


async def test_a_published_key_is_found_by_its_id(keys: KeySet) -> None:
    assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]


async def test_without_an_id_every_key_of_the_algorithm_is_a_candidate(
    issuer: Issuer, keys: KeySet
) -> None:
    issuer.keys = [OLD, NEW, signing_key("ES256", "ec-2")]
    await keys.refresh()
    assert await kids(keys, None, "ES256") == ["ec-1", "ec-2"]


async def test_a_key_of_another_algorithm_is_not_found_and_not_asked_for(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    seconds.now += COOLDOWN_SECONDS
    assert await kids(keys, "rsa-1", "ES256") == []
    assert issuer.fetches[JWKS] == 1


async def test_nothing_is_attempted_before_the_start(issuer: Issuer) -> None:
    async with key_set(issuer.url) as keys:
        assert not keys.attempted


async def test_while_the_first_fetch_is_under_way_nothing_is_attempted_yet(issuer: Issuer) -> None:
    issuer.open.clear()
    async with key_set(issuer.url) as keys:
        starting = asyncio.create_task(keys.refresh())
        await issuer.until_fetched(DISCOVERY, 1)
        assert not keys.attempted
        issuer.open.set()
        await starting
        assert keys.attempted


async def test_starting_without_the_provider_is_no_error_but_counts_as_attempted(
    issuer: Issuer,
) -> None:
    await issuer.stop()
    async with key_set(issuer.url) as keys:
        await keys.refresh()
        assert keys.attempted


@pytest.mark.thorough
async def test_starting_with_a_provider_that_never_answers_ends(issuer: Issuer) -> None:
    issuer.open.clear()
    async with key_set(issuer.url) as keys:
        await keys.refresh()
        assert keys.attempted


async def test_known_keys_work_while_the_provider_is_unreachable(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    await issuer.stop()
    await keys.refresh()
    seconds.now += MAX_STALENESS_SECONDS
    assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]


async def test_keys_older_than_a_day_are_not_used(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    await issuer.stop()
    seconds.now += MAX_STALENESS_SECONDS + 1
    with pytest.raises(AuthUnavailableError):
        await keys.key("rsa-1", "RS256")


async def test_an_unknown_id_is_unavailable_while_the_provider_is_unreachable(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    await issuer.stop()
    seconds.now += COOLDOWN_SECONDS
    with pytest.raises(AuthUnavailableError):
        await keys.key("unknown", "RS256")


async def test_an_unknown_id_is_not_found_when_the_provider_does_not_have_it(
    keys: KeySet, seconds: Seconds
) -> None:
    seconds.now += COOLDOWN_SECONDS
    assert await kids(keys, "unknown", "RS256") == []


async def test_unknown_id_is_fetched_after_the_cooldown(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    issuer.keys.append(NEW)
    seconds.now += COOLDOWN_SECONDS
    assert await kids(keys, "ec-1", "ES256") == ["ec-1"]


async def test_missing_keys_are_fetched(issuer: Issuer) -> None:
    async with key_set(issuer.url) as keys:
        assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]


async def test_recovered_provider_is_used_after_the_cooldown(
    issuer: Issuer, seconds: Seconds
) -> None:
    await issuer.stop()
    async with key_set(issuer.url, seconds) as keys:
        await keys.refresh()
        await issuer.start()
        seconds.now += COOLDOWN_SECONDS
        with pytest.raises(AuthUnavailableError):
            await keys.key("rsa-1", "RS256")
        await keys.refresh()  # joins the fetch that this request has begun
        assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]
        assert issuer.fetches[JWKS] == 1


async def test_no_request_waits_for_a_hanging_provider_after_a_failure(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    await issuer.stop()
    await keys.refresh()
    issuer.open.clear()
    await issuer.start()
    seconds.now += COOLDOWN_SECONDS
    for kid in ("ec-1", "unknown"):
        with pytest.raises(AuthUnavailableError):
            await at_once(keys.key(kid, "ES256"))
    await issuer.until_fetched(DISCOVERY, 2)
    with pytest.raises(AuthUnavailableError):
        await at_once(keys.key("unknown", "ES256"))
    assert issuer.fetches[JWKS] == 1


async def test_a_known_key_waits_for_no_fetch(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    issuer.open.clear()
    seconds.now += COOLDOWN_SECONDS
    waiting = asyncio.create_task(kids(keys, "unknown", "RS256"))
    await issuer.until_fetched(DISCOVERY, 2)
    assert await at_once(kids(keys, "rsa-1", "RS256")) == ["rsa-1"]
    assert await at_once(kids(keys, None, "RS256")) == ["rsa-1"]
    assert not waiting.done()
    issuer.open.set()
    assert await waiting == []


async def test_keys_too_old_are_fetched_again_by_the_request_that_needs_them(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    seconds.now += MAX_STALENESS_SECONDS + 1
    assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]
    assert issuer.fetches[JWKS] == 2


async def test_a_failed_attempt_does_not_make_the_keys_younger(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    await issuer.stop()
    seconds.now += MAX_STALENESS_SECONDS
    await keys.refresh()
    assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]
    seconds.now += 1
    with pytest.raises(AuthUnavailableError):
        await keys.key("rsa-1", "RS256")


NOT_FOUND = "not found"


async def _outcome(keys: KeySet, kid: str) -> str:
    try:
        return NOT_FOUND if await keys.key(kid, "RS256") == () else "found"
    except AuthUnavailableError as error:
        return error.code


async def _outcomes(keys: KeySet, *, together: bool) -> set[str]:
    calls = [_outcome(keys, f"unknown-{number}") for number in range(1000)]
    return set(await asyncio.gather(*calls)) if together else {await call for call in calls}


@pytest.mark.parametrize("together", [True, False], ids=["together", "one after the other"])
async def test_a_thousand_unknown_ids_cause_one_fetch(
    issuer: Issuer, keys: KeySet, seconds: Seconds, *, together: bool
) -> None:
    seconds.now += COOLDOWN_SECONDS
    assert await _outcomes(keys, together=together) == {NOT_FOUND}
    assert issuer.fetches[JWKS] == 2


@pytest.mark.parametrize("together", [True, False], ids=["together", "one after the other"])
async def test_a_thousand_unknown_ids_cause_one_attempt_while_the_provider_fails(
    issuer: Issuer, keys: KeySet, seconds: Seconds, *, together: bool
) -> None:
    issuer.answers[DISCOVERY] = Answer(500, b"")
    seconds.now += COOLDOWN_SECONDS
    assert await _outcomes(keys, together=together) == {AuthUnavailableError.code}
    assert issuer.fetches[DISCOVERY] == 2


async def test_the_background_refresh_waits_for_the_cool_down_too(issuer: Issuer) -> None:
    """Of two refreshers at the same interval, the one whose clock does not advance does not fetch
    again.
    """
    async with (
        running_issuer() as ticking,
        key_set(issuer.url, Seconds(), refresh_seconds=0.001) as still,
        key_set(ticking.url, time.monotonic, refresh_seconds=0.001) as going,
        refreshing(still),
        refreshing(going),
    ):
        await ticking.until_fetched(JWKS, 10)
        assert issuer.fetches[JWKS] == 1


async def test_canceled_waiter_does_not_cancel_the_fetch(
    issuer: Issuer, keys: KeySet, seconds: Seconds
) -> None:
    issuer.keys.append(NEW)
    issuer.open.clear()
    seconds.now += COOLDOWN_SECONDS
    first = asyncio.create_task(kids(keys, "ec-1", "ES256"))
    second = asyncio.create_task(kids(keys, "ec-1", "ES256"))
    await issuer.until_fetched(DISCOVERY, 2)
    first.cancel()
    issuer.open.set()
    assert await second == ["ec-1"]
    assert issuer.fetches[DISCOVERY] == 2


async def test_a_withdrawn_key_is_gone_with_the_next_fetch(issuer: Issuer, keys: KeySet) -> None:
    issuer.keys = [NEW]
    await keys.refresh()
    assert await kids(keys, "rsa-1", "RS256") == []


async def test_a_provider_may_withdraw_every_key(
    issuer: Issuer, keys: KeySet, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.keys = []
    await keys.refresh()
    assert await kids(keys, "rsa-1", "RS256") == []
    assert "publishes no usable key" in caplog.text


async def test_the_keys_are_refreshed_in_the_background(issuer: Issuer) -> None:
    keys_of_issuer = key_set(issuer.url, time.monotonic, refresh_seconds=0.001)
    async with keys_of_issuer as keys, refreshing(keys):
        await issuer.until_fetched(JWKS, 3)


async def test_the_background_refresh_outlives_failures(issuer: Issuer) -> None:
    issuer.answers[DISCOVERY] = Answer(200, b"[" * 100_000)
    keys_of_issuer = key_set(issuer.url, time.monotonic, refresh_seconds=0.001)
    async with keys_of_issuer as keys, refreshing(keys):
        await issuer.until_fetched(DISCOVERY, 3)


async def test_closing_ends_the_current_fetch(issuer: Issuer) -> None:
    before = asyncio.all_tasks()  # of services that other tests share, too
    async with key_set(issuer.url) as keys:
        await keys.refresh()
        issuer.open.clear()
        waiting = asyncio.create_task(keys.refresh())
        await issuer.until_fetched(DISCOVERY, 2)
        await keys.aclose()
        await waiting
        assert not [
            task for task in asyncio.all_tasks() - before if "KeySet" in repr(task.get_coro())
        ]


async def test_an_issuer_with_a_terminating_slash_is_discovered_without_it(issuer: Issuer) -> None:
    document = {"issuer": issuer.url + "/", "jwks_uri": issuer.url + JWKS}
    issuer.answers[DISCOVERY] = Answer(200, json.dumps(document).encode())
    async with key_set(issuer.url + "/") as keys:
        assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]


async def test_null_in_the_discovery_document_is_an_absent_member(issuer: Issuer) -> None:
    optional = (
        "userinfo_endpoint",
        "authorization_endpoint",
        "token_endpoint",
        "end_session_endpoint",
        "token_endpoint_auth_methods_supported",
        "authorization_response_iss_parameter_supported",
    )
    document = {"issuer": issuer.url, "jwks_uri": issuer.url + JWKS, **dict.fromkeys(optional)}
    issuer.answers[DISCOVERY] = Answer(200, json.dumps(document).encode())
    async with key_set(issuer.url) as keys:
        assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]


async def test_ignored_keys_are_logged_with_the_reason_when_they_change(
    issuer: Issuer, keys: KeySet, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"kty": "EC", "crv": "secp256k1", "kid": "odd"}
    encryption = {**NEW.jwk(), "use": "enc", "kid": "enc-1"}
    issuer.answers[JWKS] = Answer(200, json.dumps({"keys": [OLD.jwk(), odd, encryption]}).encode())
    with caplog.at_level(logging.INFO, "tenantry"):
        for _ in range(3):
            await keys.refresh()
    assert [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if "is ignored" in record.message
    ] == [
        (
            "WARNING",
            "the identity provider's key 'odd' is ignored: its type is not supported: 'EC', curve 'secp256k1'",
        ),
        ("INFO", "the identity provider's key 'enc-1' is ignored: it is for another use: 'enc'"),
    ]


HUGE = json.dumps({"keys": [], "padding": "x" * 256 * 1024}).encode()
NONE = json.dumps({"keys": []}).encode()
REFUSED = [
    pytest.param(
        DISCOVERY,
        Answer(200, b'{"issuer": "https://other.example", "jwks_uri": ""}'),
        id="another issuer",
    ),
    pytest.param(DISCOVERY, Answer(200, b"<html>"), id="discovery is not JSON"),
    pytest.param(DISCOVERY, Answer(200, b'{"issuer": 1}'), id="discovery of wrong types"),
    pytest.param(DISCOVERY, Answer(200, b"\xff\xfe"), id="discovery is not UTF-8"),
    pytest.param(DISCOVERY, Answer(302, b"", {"Location": JWKS}), id="redirect"),
    pytest.param(JWKS, Answer(503, b""), id="keys unavailable"),
    pytest.param(JWKS, Answer(200, b"[]"), id="keys are not an object"),
    pytest.param(JWKS, Answer(200, b"[" * 100_000), id="deep nesting"),
    pytest.param(JWKS, Answer(200, HUGE), id="too big"),
    pytest.param(
        JWKS, Answer(200, gzip.compress(NONE), {"Content-Encoding": "gzip"}), id="compressed"
    ),
    pytest.param(JWKS, Answer(200, NONE, {"Content-Length": "1000"}), id="cut short"),
]


@cases(("path", "answer"), REFUSED)
async def test_unusable_response_counts_as_an_outage(
    issuer: Issuer, path: str, answer: Answer
) -> None:
    issuer.answers = {path: answer}
    async with key_set(issuer.url) as keys:
        await keys.refresh()
        with pytest.raises(AuthUnavailableError):
            await keys.key("rsa-1", "RS256")


async def test_a_failed_refresh_keeps_the_keys(issuer: Issuer, keys: KeySet) -> None:
    issuer.answers[JWKS] = Answer(200, b"[" * 100_000)
    await keys.refresh()
    assert await kids(keys, "rsa-1", "RS256") == ["rsa-1"]


@pytest.mark.parametrize(
    "address", ["http://issuer.example/jwks", "file:///etc/passwd", "https://", "\x00"]
)
async def test_keys_are_not_fetched_from_an_insecure_address(issuer: Issuer, address: str) -> None:
    document = {"issuer": issuer.url, "jwks_uri": address}
    issuer.answers[DISCOVERY] = Answer(200, json.dumps(document).encode())
    async with key_set(issuer.url) as keys:
        with pytest.raises(AuthUnavailableError):
            await keys.key("rsa-1", "RS256")


async def test_closed_client_counts_as_an_outage(issuer: Issuer) -> None:
    async with httpx2.AsyncClient(verify=False) as client:
        keys = patient_keys(
            OidcConfig(Issuers(issuer.url), (AUDIENCE,)), client, monotonic=Seconds()
        )
    with pytest.raises(AuthUnavailableError):
        await keys.key("rsa-1", "RS256")
