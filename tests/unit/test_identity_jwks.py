"""Which published keys may prove a token."""

import json
import logging
import secrets
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc.jwk import ECKey, OKPKey
from joserfc.util import int_to_base64, urlsafe_b64encode

from tenantry.integrations.oidc.keys import MAX_KEYS, usable_keys, weakness
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
        pytest.param({**ED25519, "x": 5}, id="Ed25519 of the wrong type"),
        pytest.param({**ED25519, "x": "é"}, id="Ed25519 that is no base64"),
        pytest.param({"kty": "AKP", "kid": "future", "pub": "AA"}, id="unknown type"),
        pytest.param({"kid": "typeless"}, id="no type"),
        pytest.param("key", id="not an object"),
    ],
)
def test_unusable_keys_are_ignored(entry: Any) -> None:
    assert [key.kid for _, key in usable_keys([entry, EC])] == ["ec-1"]


def test_no_more_than_32_keys_are_used() -> None:
    many = [{**EC, "kid": str(number)} for number in range(MAX_KEYS + 1)]
    assert len(usable_keys(json.loads(json.dumps(many)))) == MAX_KEYS


ROCA: Final = (
    "srQ03ZJsm-BiILFaM2FNiuLd3bfx2bM8M6kJMjnz4sxMlb6rfUOqFn-Yqg25INyK4SPWdyz6qJ9-NvG0o_zDuGtEeo6f2YKXKjlRqP93Kchpzm2uZ7sM"
    "5JBsifbEWC6tXpWDGlAmet1ljNVfvU-3wKCJHCRoBvIZGGi78lI5fCMZmmx5oVEYoFkc85ylO-SD0k8W0J-ik9wNPgsSNs4RRnckj6Ose2HY4_WErCSC"
    "q_ssjpKEVkxcDs9ha9KGSk42c8XMcMJUT3rXHEV_TduxpZtLmWPq1OEWTEBfCb10KiWeJnfLxD5WOQfkawbo52I5Q8ho2Vh-lkWUauUGxJh2Jw"
)
"""The product of two primes of 1024 bits, each ``k * M + 65537**a % M`` for M, the product of the first 126 primes."""


def okp(curve: str, y: int, sign: int = 0) -> dict[str, Any]:
    size = {"Ed25519": 32, "Ed448": 57}[curve]
    x = (y | sign << (8 * size - 1)).to_bytes(size, "little")
    return {"kty": "OKP", "crv": curve, "kid": "weak", "x": urlsafe_b64encode(x).decode()}


P25519: Final = 2**255 - 19
P448: Final = 2**448 - 2**224 - 1
OF_ORDER_8: Final = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        pytest.param(_short_rsa(), "RSA of 1024 bits", id="RSA of 1024 bits"),
        pytest.param(
            {**RSA, "kid": "weak", "n": int_to_base64(1 << 8192 | 1)}, "RSA of 8193 bits", id="RSA of 8193 bits"
        ),
        pytest.param({**RSA, "kid": "weak", "n": int_to_base64(1 << 131072 | 1)}, "RSA of 131073", id="RSA, huge"),
        pytest.param({**RSA, "kid": "weak", "n": ROCA}, "ROCA", id="ROCA"),
        *(
            pytest.param(okp("Ed25519", y, sign), "small order", id=f"Ed25519 {name}, sign {sign}")
            for name, y in {
                "all zero": 0, "one": 1, "minus one": P25519 - 1, "order 8": OF_ORDER_8,
                "other order 8": P25519 - OF_ORDER_8, "zero, not reduced": P25519, "one, not reduced": P25519 + 1,
            }.items()
            for sign in (0, 1)
        ),
        *(pytest.param(okp("Ed448", y), "small order", id=f"Ed448 {y % 9}") for y in (0, 1, P448 - 1, P448)),
    ],
)  # fmt: skip
def test_weak_key_is_ignored_and_logged(entry: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    assert [key.kid for _, key in usable_keys([entry, EC])] == ["ec-1"]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert reason in record.getMessage()
    assert entry["kid"] in record.getMessage()


def test_key_id_of_a_weak_key_cannot_break_the_log(caplog: pytest.LogCaptureFixture) -> None:
    usable_keys([{**okp("Ed25519", 0), "kid": "a\nb" + "x" * 500}])
    [record] = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 300


def test_largest_key_and_random_keys_are_not_weak(caplog: pytest.LogCaptureFixture) -> None:
    largest = {**RSA, "n": int_to_base64(1 << 8191 | 1)}
    keys = [OKPKey.generate_key(curve).as_dict(private=False) for curve in ("Ed25519", "Ed448")]
    assert len(usable_keys([largest, *keys])) == 3
    for _ in range(500):
        assert weakness({"kty": "RSA", "n": int_to_base64(secrets.randbits(2048) | 1 << 2047 | 1)}) is None
    assert caplog.records == []
