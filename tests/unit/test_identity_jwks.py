"""Which published keys may prove a token."""

import asyncio
import json
from typing import Any

import pytest
from joserfc.jwk import OKPKey
from joserfc.util import int_to_base64

from tenantry.integrations.oidc import keys
from tenantry.integrations.oidc.keys import (
    ALGORITHMS,
    MAX_ENTRIES,
    MAX_KEYS,
    IgnoredKey,
    UsableKey,
)
from tests.support.cases import cases
from tests.support.issuer import signing_key

RSA = {
    "kty": "RSA",
    "kid": "rsa-1",
    "use": "sig",
    "alg": "RS256",
    "n": int_to_base64(1 << 2047 | 1),
    "e": "AQAB",
}
"""It needs no primes: only its form and size are read."""
SHORT_RSA = {**RSA, "kid": "short", "n": int_to_base64(1 << 1023 | 1)}
EC = signing_key("ES256", "ec-1").jwk()
ED25519 = signing_key("EdDSA", "ed-1").jwk()


def read_key_set(entries: list[Any]) -> tuple[list[UsableKey], list[IgnoredKey]]:
    return asyncio.run(keys.read_key_set(entries))


def algorithms_of(entry: dict[str, Any]) -> tuple[str, ...]:
    """The algorithms whose signatures the key of an entry may verify; none if it is ignored."""
    usable, _ = read_key_set([entry])
    return usable[0].algorithms if usable else ()


def kids(entries: list[Any]) -> list[str | None]:
    return [each.key.kid for each in read_key_set(entries)[0]]


@cases("alg", [alg for alg in ALGORITHMS if alg not in ("EdDSA", "Ed25519")])
def test_a_key_serves_the_algorithm_that_it_names(alg: str) -> None:
    assert algorithms_of(signing_key(alg, alg).jwk()) == (alg,)


@pytest.mark.parametrize("alg", ["EdDSA", "Ed25519"])
def test_both_names_of_ed25519_mean_the_same(alg: str) -> None:
    assert algorithms_of({**ED25519, "alg": alg}) == ("EdDSA", "Ed25519")


@cases(
    ("entry", "algorithms"),
    [
        (RSA, ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        (EC, ("ES256",)),
        (signing_key("ES384", "ec-2").jwk(), ("ES384",)),
        (signing_key("ES512", "ec-3").jwk(), ("ES512",)),
        (ED25519, ("EdDSA", "Ed25519")),
        (OKPKey.generate_key("Ed448").as_dict(private=False), ("EdDSA",)),
    ],
    ids=["RSA", "P-256", "P-384", "P-521", "Ed25519", "Ed448"],
)
@cases("absent", [{}, {"use": None, "alg": None, "key_ops": None}, {"key_ops": []}], ids=str)
def test_key_without_an_algorithm_serves_all_that_fit(
    entry: dict[str, Any], algorithms: tuple[str, ...], absent: dict[str, Any]
) -> None:
    bare = {
        name: value for name, value in entry.items() if name not in ("use", "alg", "key_ops", "kid")
    }
    assert algorithms_of({**bare, **absent}) == algorithms


def test_number_as_the_key_id_is_its_text() -> None:
    assert kids([{**RSA, "kid": 7}, {**EC, "kid": None}]) == ["7", None]


@cases(
    "entry",
    [
        pytest.param(
            {"kty": "oct", "kid": "secret", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}, id="symmetric"
        ),
        pytest.param(SHORT_RSA, id="RSA of 1024 bits"),
        pytest.param({**RSA, "use": "enc"}, id="for encryption"),
        pytest.param({**RSA, "use": 7}, id="use of the wrong type"),
        pytest.param({**RSA, "alg": "HS256"}, id="RSA key that says HMAC"),
        pytest.param({**RSA, "alg": "RSA-OAEP"}, id="RSA key for encryption"),
        pytest.param({**RSA, "alg": "ES256"}, id="RSA key that says ECDSA"),
        pytest.param({**EC, "alg": "ES384"}, id="P-256 key that says ES384"),
        pytest.param({**EC, "crv": "P-384"}, id="P-256 key that says P-384"),
        pytest.param(
            {**OKPKey.generate_key("Ed448").as_dict(private=False), "alg": "Ed25519"},
            id="Ed448 as Ed25519",
        ),
        pytest.param({**RSA, "alg": ["RS256"]}, id="alg of the wrong type"),
        pytest.param({**RSA, "key_ops": "verify"}, id="key_ops of the wrong type"),
        pytest.param({**RSA, "key_ops": 7}, id="key_ops is a number"),
        pytest.param({**EC, "kty": "EC", "crv": "secp256k1"}, id="secp256k1"),
        pytest.param({**RSA, "kty": ["RSA"]}, id="type of the wrong type"),
        pytest.param({**RSA, "use": "sig", "key_ops": ["sign"]}, id="not to verify with"),
        pytest.param({**RSA, "kid": 7.5}, id="kid is a fraction"),
        pytest.param({**RSA, "kid": ["rsa-1"]}, id="kid of the wrong type"),
        pytest.param({**RSA, "n": "%%%"}, id="broken modulus"),
        pytest.param({**RSA, "n": 5}, id="modulus of the wrong type"),
        pytest.param({**RSA, "e": "AQ"}, id="exponent 1"),
        pytest.param({"kty": "RSA", "e": "AQAB"}, id="no modulus"),
        pytest.param({**RSA, "d": "AQAB"}, id="private half published"),
        pytest.param({**EC, "y": EC["x"]}, id="point off the curve"),
        pytest.param(OKPKey.generate_key("X25519").as_dict(private=False), id="X25519"),
        pytest.param({**ED25519, "x": 5}, id="Ed25519 of the wrong type"),
        pytest.param({**ED25519, "x": "é"}, id="Ed25519 that is no base64"),
        pytest.param({"kty": "AKP", "kid": "future", "pub": "AA"}, id="unknown type"),
        pytest.param({"kid": "typeless"}, id="no type"),
        pytest.param("key", id="not an object"),
    ],
)
def test_unusable_keys_are_ignored_with_a_reason(entry: Any) -> None:
    usable, ignored = read_key_set([entry, EC])
    assert [each.key.kid for each in usable] == ["ec-1"]
    assert [bool(each.reason) for each in ignored] == [True]


def test_no_more_than_32_keys_are_used() -> None:
    many = [{**EC, "kid": str(number)} for number in range(MAX_KEYS + 1)]
    usable, ignored = read_key_set(json.loads(json.dumps(many)))
    assert len(usable) == MAX_KEYS
    assert [str(each) for each in ignored] == [
        f"'{MAX_KEYS}': only the first {MAX_KEYS} keys are used"
    ]


def test_the_first_entries_of_a_long_key_set_are_read() -> None:
    many: list[Any] = [{}] * (MAX_ENTRIES - 1)
    assert kids([*many, EC]) == ["ec-1"]
    assert kids([*many, {}, EC]) == []


@cases(
    ("entry", "reason"),
    [
        pytest.param(SHORT_RSA, "RSA of 1024 bits", id="RSA of 1024 bits"),
        pytest.param(
            {**RSA, "kid": "weak", "n": int_to_base64(1 << 8192 | 1)},
            "RSA of 8193 bits",
            id="RSA of 8193 bits",
        ),
        pytest.param(
            {**RSA, "kid": "weak", "n": int_to_base64(1 << 131072 | 1)},
            "a member is too long",
            id="RSA, huge",
        ),
    ],
)
def test_rsa_key_of_another_size_is_ignored(entry: dict[str, Any], reason: str) -> None:
    usable, [ignored] = read_key_set([entry, EC])
    assert [each.key.kid for each in usable] == ["ec-1"]
    assert reason in ignored.reason
    assert entry["kid"] in ignored.kid


@cases("member", ["kid", "use", "alg", "kty", "crv"])
def test_nothing_that_a_provider_writes_can_break_a_log_line(member: str) -> None:
    _, [ignored] = read_key_set([{**ED25519, "x": "é", member: "a\nb" + "x" * 500}])
    assert "\n" not in str(ignored)
    assert len(str(ignored)) < 300


def test_largest_rsa_key_is_used() -> None:
    assert kids([{**RSA, "n": int_to_base64(1 << 8191 | 1)}]) == ["rsa-1"]
