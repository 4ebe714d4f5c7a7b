"""The cache of verified tokens: which checks it saves, and which are made every time."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import httpx2
import pytest

from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError, TokenExpiredError
from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import MAX_STALENESS_SECONDS, KeySet
from tenantry.integrations.oidc.tokens import TokenVerifier, VerifiedTokenCache
from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    NOW,
    Issuer,
    SigningKey,
    running_issuer,
    signing_key,
)
from tests.support.patience import patient_keys

RSA = signing_key("RS256", "rsa-1")
EC = signing_key("ES256", "ec-1")
ISSUED = int(NOW.timestamp())


@dataclasses.dataclass
class Bench:
    """A verifier with its provider, keys, cache and clocks."""

    issuer: Issuer
    keys: KeySet
    cache: VerifiedTokenCache
    verifier: TokenVerifier
    now: datetime = NOW
    seconds: float = 0.0

    async def accepted(self, token: str) -> None:
        """Check that the token is valid, and its signature was verified."""
        hits = self.cache.hits
        await self.verifier.verify(token)
        assert self.cache.hits == hits, "it was proved before"

    async def known(self, token: str) -> None:
        """Check that the token is valid, and its signature was not verified again."""
        hits = self.cache.hits
        await self.verifier.verify(token)
        assert self.cache.hits == hits + 1, "it was not proved before"


@contextlib.asynccontextmanager
async def bench_of(*keys: SigningKey) -> AsyncIterator[Bench]:
    async with running_issuer(*keys) as issuer, httpx2.AsyncClient(verify=False) as client:
        config = OidcConfig(Issuers(issuer.url), (AUDIENCE,), client_id=CLIENT_ID)
        key_set = patient_keys(config, client, monotonic=lambda: made.seconds)
        cache = VerifiedTokenCache()
        verifier = TokenVerifier(config, key_set, clock=lambda: made.now, cache=cache)
        made: Bench = Bench(issuer, key_set, cache, verifier)
        await key_set.refresh()
        yield made
        await key_set.aclose()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with bench_of(RSA, EC) as made:
        yield made


@pytest.mark.parametrize("key", [RSA, EC], ids=lambda key: key.alg)
async def test_token_is_verified_once_with_the_same_claims_afterwards(
    bench: Bench, key: SigningKey
) -> None:
    token = bench.issuer.mint(key, claims={"org_id": "acme", "org_role": "admin", "scope": "a:b"})
    first = await bench.verifier.verify(token)
    await bench.known(token)
    assert await bench.verifier.verify(token) == first


async def test_a_token_with_another_signature_is_another_token(bench: Bench) -> None:
    """ES256 signatures differ each time; the second is valid too, but must be verified."""
    first, second = bench.issuer.mint(EC), bench.issuer.mint(EC)
    assert first.rpartition(".")[0] == second.rpartition(".")[0]
    await bench.accepted(first)
    await bench.accepted(second)


async def test_cached_token_with_another_signature_is_rejected(bench: Bench) -> None:
    token = bench.issuer.mint()
    await bench.accepted(token)
    for changed in (f"{token.rpartition('.')[0]}.", f"{token}AAAA", token[:-4]):
        with pytest.raises(InvalidCredentialError):
            await bench.verifier.verify(changed)


async def test_cached_token_expires_to_the_second(bench: Bench) -> None:
    token = bench.issuer.mint(claims={"exp": ISSUED + 60})
    await bench.accepted(token)
    bench.now = NOW + timedelta(seconds=89, microseconds=999_999)
    await bench.known(token)
    bench.now = NOW + timedelta(seconds=90)
    with pytest.raises(TokenExpiredError):
        await bench.verifier.verify(token)


async def test_expired_token_is_evicted(bench: Bench) -> None:
    token = bench.issuer.mint(claims={"exp": ISSUED + 60})
    await bench.accepted(token)
    bench.now = NOW + timedelta(hours=1)
    with pytest.raises(TokenExpiredError):
        await bench.verifier.verify(token)
    assert len(bench.cache) == 0


@pytest.mark.parametrize(
    "claims", [{"nbf": ISSUED}, {"iat": ISSUED}], ids=lambda claims: next(iter(claims))
)
async def test_cached_token_is_not_valid_before_its_time(
    bench: Bench, claims: dict[str, int]
) -> None:
    """Clocks are set back sometimes."""
    token = bench.issuer.mint(claims=claims)
    await bench.accepted(token)
    bench.now = NOW - timedelta(seconds=31)
    with pytest.raises(InvalidCredentialError):
        await bench.verifier.verify(token)


async def test_cached_token_of_a_withdrawn_key_is_rejected(bench: Bench) -> None:
    token, other = bench.issuer.mint(RSA), bench.issuer.mint(EC)
    await bench.accepted(token)
    await bench.accepted(other)
    bench.issuer.keys = [EC]
    await bench.keys.refresh()
    with pytest.raises(InvalidCredentialError):
        await bench.verifier.verify(token)
    await bench.known(other)


async def test_cached_token_is_verified_again_when_its_key_id_has_another_key(bench: Bench) -> None:
    """A key id may get another key; signatures of the former key are then invalid."""
    token = bench.issuer.mint(RSA)
    await bench.accepted(token)
    bench.issuer.keys = [SigningKey("RS256", RSA.kid, signing_key("RS256", "rsa-2").private)]
    await bench.keys.refresh()
    with pytest.raises(InvalidCredentialError):
        await bench.verifier.verify(token)


async def test_cached_token_without_an_id_depends_on_its_key(bench: Bench) -> None:
    bench.issuer.keys = [RSA, signing_key("RS256", "rsa-2")]
    await bench.keys.refresh()
    token = bench.issuer.mint(RSA, without=("kid",))
    await bench.accepted(token)
    bench.issuer.keys = [signing_key("RS256", "rsa-2")]
    await bench.keys.refresh()
    with pytest.raises(InvalidCredentialError):
        await bench.verifier.verify(token)


async def test_cached_token_stays_when_the_same_keys_are_fetched_again(bench: Bench) -> None:
    token = bench.issuer.mint()
    await bench.accepted(token)
    await bench.keys.refresh()
    await bench.known(token)


async def test_cached_token_is_valid_while_the_provider_is_away(bench: Bench) -> None:
    token = bench.issuer.mint()
    await bench.accepted(token)
    await bench.issuer.stop()
    await bench.keys.refresh()
    await bench.known(token)


async def test_cached_token_is_unavailable_once_the_keys_are_too_old(bench: Bench) -> None:
    token = bench.issuer.mint(claims={"exp": ISSUED + 3600})
    await bench.accepted(token)
    await bench.issuer.stop()
    bench.seconds = MAX_STALENESS_SECONDS + 1
    with pytest.raises(AuthUnavailableError):
        await bench.verifier.verify(token)


async def test_rejected_tokens_are_not_cached(bench: Bench) -> None:
    future = bench.issuer.mint(claims={"nbf": ISSUED + 60})
    forged = bench.issuer.mint(signing_key("RS256", "outsider"), header={"kid": "rsa-1"})
    unknown = bench.issuer.mint(signing_key("RS256", "rsa-2"))
    for token in (future, forged, unknown):
        with pytest.raises(InvalidCredentialError):
            await bench.verifier.verify(token)
    assert len(bench.cache) == 0
    bench.now = NOW + timedelta(seconds=60)
    await bench.accepted(future)
    bench.issuer.keys.append(signing_key("RS256", "rsa-2"))
    await bench.keys.refresh()
    await bench.accepted(unknown)


async def test_cache_contains_only_claims_of_a_token(bench: Bench) -> None:
    token = bench.issuer.mint(claims={"secret": "of-the-provider"})
    await bench.accepted(token)
    cache_content = repr(vars(bench.cache))
    for part in (token, *token.split("."), "of-the-provider"):
        assert part not in cache_content
    assert "user_1" in cache_content


async def test_explaining_checks_the_signature_of_a_cached_token(bench: Bench) -> None:
    token = bench.issuer.mint()
    await bench.accepted(token)
    assert (await bench.verifier.explain(token)).proven
    assert bench.cache.hits == 0
