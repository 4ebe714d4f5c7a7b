"""Which published keys may prove a token."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc.jwk import ECKey, OKPKey
from joserfc.util import int_to_base64

from tenantry.gateways.identity.jwks import MAX_KEYS, usable_keys
from tests.support.issuer import signing_key


def _short_rsa() -> dict[str, Any]:
    numbers = rsa.generate_private_key(65537, 1024).public_key().public_numbers()  # noqa: S505  # too short is the point
    return {"kty": "RSA", "kid": "short", "n": int_to_base64(numbers.n), "e": int_to_base64(numbers.e)}


RSA = signing_key("RS256", "rsa-1").jwk()
EC = signing_key("ES256", "ec-1").jwk()
ED25519 = signing_key("EdDSA", "ed-1").jwk()


@pytest.mark.parametrize("entry", [RSA, EC, ED25519], ids=["RSA", "EC", "OKP"])
def test_a_key_serves_the_algorithm_of_its_type(entry: dict[str, Any]) -> None:
    assert [(alg, key.kid) for alg, key in usable_keys([entry])] == [(entry["alg"], entry["kid"])]


def test_use_alg_and_kid_are_optional() -> None:
    bare = {name: RSA[name] for name in ("kty", "n", "e")}
    assert [alg for alg, _ in usable_keys([bare])] == ["RS256"]


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"kty": "oct", "kid": "secret", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}, id="symmetric"),
        pytest.param(_short_rsa(), id="RSA of 1024 bits"),
        pytest.param({**RSA, "use": "enc"}, id="for encryption"),
        pytest.param({**RSA, "use": 7}, id="use of the wrong type"),
        pytest.param({**RSA, "alg": "RS512"}, id="for another algorithm"),
        pytest.param({**RSA, "alg": "HS256"}, id="RSA key that says HMAC"),
        pytest.param({**RSA, "use": "sig", "key_ops": ["sign"]}, id="not to verify with"),
        pytest.param({**RSA, "kid": 7}, id="kid of the wrong type"),
        pytest.param({**RSA, "n": "%%%"}, id="broken modulus"),
        pytest.param({**RSA, "n": 5}, id="modulus of the wrong type"),
        pytest.param({**RSA, "e": "AQ"}, id="exponent 1"),
        pytest.param({"kty": "RSA", "e": "AQAB"}, id="no modulus"),
        pytest.param(signing_key("RS256", "rsa-1").private.as_dict(private=True), id="private half published"),
        pytest.param(ECKey.generate_key("P-384").as_dict(private=False), id="P-384"),
        pytest.param({**EC, "y": EC["x"]}, id="point off the curve"),
        pytest.param(OKPKey.generate_key("X25519").as_dict(private=False), id="X25519"),
        pytest.param({"kty": "AKP", "kid": "future", "pub": "AA"}, id="unknown type"),
        pytest.param({"kid": "typeless"}, id="no type"),
        pytest.param("key", id="not an object"),
    ],
)
def test_what_cannot_prove_a_token_is_left_out_and_the_others_stay(entry: Any) -> None:
    assert [key.kid for _, key in usable_keys([entry, EC])] == ["ec-1"]


def test_no_more_than_32_keys_are_used() -> None:
    many = [{**EC, "kid": str(number)} for number in range(MAX_KEYS + 1)]
    assert len(usable_keys(json.loads(json.dumps(many)))) == MAX_KEYS
