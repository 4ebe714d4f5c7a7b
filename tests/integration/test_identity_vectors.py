"""The signed examples of the JOSE standards, through the verifier.

None of them is an access token of this service, so all are rejected: those of supported algorithms
only after their signature was verified, the others by the name of their algorithm.
"""

import json
from collections.abc import AsyncIterator

import httpx2
import pytest
from joserfc import jws
from joserfc.errors import BadSignatureError
from joserfc.jwk import JWKRegistry

from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import ALGORITHMS
from tenantry.integrations.oidc.tokens import CheckResult, TokenVerifier
from tests.support.cases import cases
from tests.support.issuer import AUDIENCE, JWKS, NOW, Answer, running_issuer
from tests.support.jws_vectors import VECTORS, Vector
from tests.support.patience import patient_keys

OURS = [vector for vector in VECTORS if vector.alg in ALGORITHMS]
OTHERS = [vector for vector in VECTORS if vector.alg not in ALGORITHMS]


@pytest.fixture(scope="module")
async def verifier() -> AsyncIterator[TokenVerifier]:
    """A verifier whose provider publishes the keys of all examples, also symmetric ones."""
    async with running_issuer() as issuer, httpx2.AsyncClient(verify=False) as client:
        keys = [vector.key for vector in VECTORS if vector.key]
        issuer.answers[JWKS] = Answer(200, json.dumps({"keys": keys}).encode())
        config = OidcConfig(Issuers(issuer.url), (AUDIENCE,))
        key_set = patient_keys(config, client, monotonic=lambda: 0.0)
        await key_set.refresh()
        yield TokenVerifier(config, key_set, clock=lambda: NOW)


async def failed_at(verifier: TokenVerifier, token: str) -> str:
    """The check that a token does not pass."""
    (failed,) = [
        step.name
        for step in (await verifier.explain(token)).steps
        if step.result is CheckResult.FAILED
    ]
    return failed


def flipped(token: str, number: int) -> str:
    """The token with one bit of a segment changed, in the middle, where every bit counts."""
    parts = token.split(".")
    text = parts[number]
    middle = len(text) // 2
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    changed = digits[digits.index(text[middle]) ^ 1]
    parts[number] = f"{text[:middle]}{changed}{text[middle + 1 :]}"
    return ".".join(parts)


@pytest.mark.parametrize(
    "vector", [vector for vector in OTHERS if vector.key], ids=lambda vector: vector.source
)
def test_example_is_the_standard_s(vector: Vector) -> None:
    """The library verifies these algorithms, so a rejection below has no other cause."""
    key = JWKRegistry.import_key(dict(vector.key or {}))
    assert jws.deserialize_compact(vector.compact, key, [vector.alg]).payload
    with pytest.raises(BadSignatureError):
        jws.deserialize_compact(flipped(vector.compact, 1), key, [vector.alg])


def test_every_kind_of_supported_algorithm_has_an_example() -> None:
    assert {vector.alg for vector in OURS} == {"RS256", "PS384", "ES256", "ES512", "EdDSA"}


@cases("vector", OURS, ids=lambda vector: vector.source)
async def test_signature_of_a_supported_algorithm_is_valid(
    verifier: TokenVerifier, vector: Vector
) -> None:
    assert await failed_at(verifier, vector.compact) == "claims"


@cases("number", [1, 2], ids=["payload", "signature"])
@cases("vector", OURS, ids=lambda vector: vector.source)
async def test_altered_signature_is_invalid(
    verifier: TokenVerifier, vector: Vector, number: int
) -> None:
    assert await failed_at(verifier, flipped(vector.compact, number)) == "signature"


@pytest.mark.parametrize("vector", OTHERS, ids=lambda vector: vector.source)
async def test_other_algorithms_are_refused_by_name(
    verifier: TokenVerifier, vector: Vector
) -> None:
    assert await failed_at(verifier, vector.compact) == "algorithm"
