"""Tokens that must be refused: each with the reason why, so that no check can hide behind another."""

import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from tenantry.domain.errors import InvalidCredentialError
from tenantry.gateways.identity import KeySet, OidcConfig, TokenVerifier
from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    NOW,
    Issuer,
    SigningKey,
    running_issuer,
    segment,
    signing_key,
)

RSA = signing_key("RS256", "rsa-1")
EC = signing_key("ES256", "ec-1")
ED25519 = signing_key("EdDSA", "ed-1")
STRANGER = signing_key("RS256", "stranger")
EC_STRANGER = signing_key("ES256", "ec-stranger")
ISSUED = int(NOW.timestamp())
HOUR, DAY = 3600, 24 * 3600


@pytest.fixture(scope="module")
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer(RSA, EC, ED25519) as running:
        yield running


@pytest.fixture(scope="module")
async def verifier(issuer: Issuer) -> AsyncIterator[TokenVerifier]:
    config = OidcConfig(issuer=issuer.url, audience=AUDIENCE, client_id=CLIENT_ID)
    async with httpx2.AsyncClient() as client:
        keys = KeySet(config, client, monotonic=lambda: 0.0)
        await keys.start()
        yield TokenVerifier(config, keys, clock=lambda: NOW)
        await keys.aclose()


def _header(key: SigningKey = RSA, **members: Any) -> bytes:
    return json.dumps({"alg": key.alg, "kid": key.kid, **members}).encode()


def _payload(issuer: Issuer, without: str = "", **members: Any) -> bytes:
    good = {"iss": issuer.url, "aud": AUDIENCE, "sub": "user_1", "iat": ISSUED, "exp": ISSUED + HOUR}
    return json.dumps({name: value for name, value in {**good, **members}.items() if name != without}).encode()


def _splice(payload: bytes, members: str) -> bytes:
    """The payload with members added to its end as they are written."""
    return payload[:-1] + b", " + members.encode() + b"}"


def _unsigned(issuer: Issuer, header: dict[str, Any], signature: bytes = b"") -> str:
    return f"{segment(json.dumps(header).encode())}.{segment(_payload(issuer))}.{segment(signature)}"


def _hmac_with_public_key(issuer: Issuer) -> str:
    signed = _unsigned(issuer, {"alg": "HS256", "kid": RSA.kid}).rstrip(".")
    proof = hmac.digest(RSA.private.as_pem(private=False), signed.encode(), hashlib.sha256)  # type: ignore[union-attr]
    return f"{signed}.{segment(proof)}"


def _other_signature(issuer: Issuer, key: SigningKey, signature: bytes) -> str:
    return issuer.mint(key).rpartition(".")[0] + "." + segment(signature)


def _der_signature(issuer: Issuer) -> str:
    signed = issuer.mint(EC).rpartition(".")[0]
    raw = EC.signature(signed.encode())
    parts = [b"\x02" + bytes([len(part)]) + part for part in (b"\x00" + raw[:32], b"\x00" + raw[32:])]
    body = b"".join(parts)
    return f"{signed}.{segment(b'0' + bytes([len(body)]) + body)}"


def _loosened(part: str) -> str:
    """Another base64url text of the same bytes: the unused bits of its last character are not zero."""
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    assert len(part) % 4
    return part[:-1] + digits[digits.index(part[-1]) + 1]


def _rewritten(token: str, number: int, change: Callable[[str], str], key: SigningKey | None = None) -> str:
    """The token with one of its three segments written otherwise; signed anew over that, where a key is given."""
    parts = token.split(".")
    parts[number] = change(parts[number])
    if key is not None:
        parts[2] = segment(key.signature(".".join(parts[:2]).encode()))
    return ".".join(parts)


def _padded_payload(issuer: Issuer, spare: int) -> bytes:
    """A payload of a length that leaves unused bits in base64url (``spare`` is 1) or none (0)."""
    payload = _payload(issuer, pad="")
    while (len(payload) % 3 == 0) == bool(spare):
        payload = payload[:-2] + b'x"}'
    return payload


def _claims(**claims: Any) -> Callable[[Issuer], str]:
    return lambda issuer: issuer.mint(claims=claims)


def _head(**header: Any) -> Callable[[Issuer], str]:
    return lambda issuer: issuer.mint(header=header)


def _raw(members: str, without: str = "") -> Callable[[Issuer], str]:
    return lambda issuer: RSA.sign(_header(), _splice(_payload(issuer, without), members))


def _without(*names: str) -> Callable[[Issuer], str]:
    return lambda issuer: issuer.mint(without=names)


SIGNATURE = {
    "another key under a known id": lambda i: i.mint(STRANGER, header={"kid": RSA.kid}),
    "another key without an id": lambda i: i.mint(STRANGER, without=("kid",)),
    "another EC key": lambda i: i.mint(EC_STRANGER, header={"kid": EC.kid}),
    "another Ed25519 key": lambda i: i.mint(signing_key("EdDSA", "ed-stranger"), header={"kid": ED25519.kid}),
    "embedded jwk": lambda i: i.mint(STRANGER, header={"kid": RSA.kid, "jwk": STRANGER.jwk()}),
    "jku": lambda i: i.mint(STRANGER, header={"kid": RSA.kid, "jku": i.url + "/evil"}),
    "x5u": lambda i: i.mint(STRANGER, header={"kid": RSA.kid, "x5u": i.url + "/evil"}),
    "x5c": lambda i: i.mint(STRANGER, header={"kid": RSA.kid, "x5c": ["MIIB"]}),
    "changed payload": lambda i: _rewritten(i.mint(), 1, lambda _: segment(_payload(i, sub="admin"))),
    "changed header": lambda i: _rewritten(i.mint(), 0, lambda _: segment(_header(typ="JWT"))),
    "empty signature": lambda i: _other_signature(i, RSA, b""),
    "ES256 r = s = 0": lambda i: _other_signature(i, EC, bytes(64)),
    "ES256 r = s = 2^256 - 1": lambda i: _other_signature(i, EC, b"\xff" * 64),
    "ES256 too short": lambda i: _other_signature(i, EC, bytes(63)),
    "ES256 too long": lambda i: _other_signature(i, EC, bytes(65)),
    "ES256 in DER": _der_signature,
    "ES256 of P-384 length": lambda i: _other_signature(i, EC, bytes(96)),
    "RS256 of zeros": lambda i: _other_signature(i, RSA, bytes(256)),
    "RS256 too short": lambda i: _other_signature(i, RSA, b"\x01" * 255),
    "RS256 too long": lambda i: _other_signature(i, RSA, b"\x00" + RSA.signature(b"")),
    "EdDSA of zeros": lambda i: _other_signature(i, ED25519, bytes(64)),
    "EdDSA too short": lambda i: _other_signature(i, ED25519, bytes(63)),
}
ALGORITHM = {
    "none": lambda i: _unsigned(i, {"alg": "none"}),
    "none with a key id": lambda i: _unsigned(i, {"alg": "none", "kid": RSA.kid}),
    "NoNe": lambda i: _unsigned(i, {"alg": "NoNe"}),
    "empty": lambda i: _unsigned(i, {"alg": ""}),
    "HS256 with the public key": _hmac_with_public_key,
    "RS512": _head(alg="RS512"),
    "PS256": _head(alg="PS256"),
    "rs256": _head(alg="rs256"),
    "ES256K": _head(alg="ES256K"),
}
KEY = {
    "RSA key for ES256": lambda i: i.mint(EC, header={"kid": RSA.kid}),
    "EC key for RS256": lambda i: i.mint(RSA, header={"kid": EC.kid}),
    "EC key for EdDSA": lambda i: i.mint(ED25519, header={"kid": EC.kid}),
}
KEY_ID = {
    "path": _head(kid="../../../../../etc/passwd"),
    "SQL": _head(kid="' OR 1=1; --"),
    "command": _head(kid="| touch /tmp/x"),
    "address": _head(kid="https://evil.example/key"),
    "empty": _head(kid=""),
    "NUL": _head(kid="rsa-1\x00"),
    "lone surrogate": _head(kid="\ud800"),
    "long": _head(kid="x" * 4000),
}
TYPE = {
    "ID token": _head(typ="id+jwt"),
    "logout token": _head(typ="logout+jwt"),
    "empty": _head(typ=""),
    "JOSE": _head(typ="JOSE"),
}
CRITICAL = {
    "unknown": _head(crit=["exp"], exp=1),
    "unknown and absent": _head(crit=["x"]),
    "empty": _head(crit=[]),
    "null": _head(crit=None),
    "b64": _head(crit=["b64"], b64=True),
    "b64 false": _head(b64=False),
    "b64 false in other words": _head(b64=0),
}
ISSUER = {
    "another": _claims(iss="https://evil.example"),
    "with a slash": lambda i: i.mint(claims={"iss": i.url + "/"}),
    "in capitals": lambda i: i.mint(claims={"iss": i.url.upper()}),
    "empty": _claims(iss=""),
}
AUDIENCES = {
    "another": _claims(aud="other-api"),
    "others": _claims(aud=["other-api", CLIENT_ID]),
    "none": _claims(aud=[]),
    "a part of ours": _claims(aud="tenantry"),
    "more than ours": _claims(aud="tenantry-api-2"),
    "the client's alone": _claims(aud=CLIENT_ID),
}
ID_TOKEN = {
    "nonce": _claims(nonce="n-0S6_WzA2Mj"),
    "nonce null": _claims(nonce=None),
    "at_hash": _claims(at_hash="MTIzNDU2Nzg5MDEyMzQ1Ng"),
}
SUBJECT = {
    "empty": _claims(sub=""),
    "blank": _claims(sub="a b"),
    "line break": _claims(sub="user_1\n"),
    "NUL": _claims(sub="user_1\x00"),
    "not ASCII": _claims(sub="z\u00f6e"),
    "256 characters": _claims(sub="x" * 256),
}
ORGANIZATION = {
    "number": _claims(org_id=7),
    "list": _claims(org_id=["acme"]),
    "null": _claims(org_id=None),
    "true": _claims(org_id=True),
    "NUL": _claims(org_id="acme\x00"),
    "lone surrogate": _claims(org_id="\ud800"),
}
FUTURE = {
    "by 31 seconds": _claims(iat=ISSUED + 31),
    "by milliseconds instead of seconds": _claims(iat=ISSUED * 1000),
    "by infinity": _raw('"iat": 1e400', without="iat"),
}
NOT_YET = {"by 31 seconds": _claims(nbf=ISSUED + 31), "by infinity": _raw('"nbf": 1e400')}
LIFETIME = {
    "a day and a second": _claims(exp=ISSUED + DAY + 1),
    "a year": _claims(exp=ISSUED + 365 * DAY),
    "issued long ago": _claims(iat=0),
    "issued beyond numbers": _claims(iat=-(10**400)),
}
RANGE = {
    "expires after the year 9999": _claims(exp=10**12),
    "expires beyond numbers": _claims(exp=10**400),
    "expires at minus infinity": _raw('"exp": -1e400', without="exp"),
}
WRONG_MEMBER = {
    "no exp": _without("exp"),
    "no iat": _without("iat"),
    "no sub": _without("sub"),
    "no iss": _without("iss"),
    "no aud": _without("aud"),
    "no alg": _without("alg"),
    "exp is true": _claims(exp=True),
    "exp is a text": _claims(exp=str(ISSUED + HOUR)),
    "exp is null": _claims(exp=None),
    "iat is true": _claims(iat=True),
    "iat is a text": _claims(iat=str(ISSUED)),
    "nbf is a text": _claims(nbf=str(ISSUED)),
    "nbf is false": _claims(nbf=False),
    "nbf is null": _claims(nbf=None),
    "sub is a number": _claims(sub=1),
    "sub is a list": _claims(sub=["user_1"]),
    "iss is a list": lambda i: i.mint(claims={"iss": [i.url]}),
    "aud is an object": _claims(aud={AUDIENCE: True}),
    "aud holds a number": _claims(aud=[AUDIENCE, 1]),
    "scope is a number": _claims(scope=7),
    "scope is an object": _claims(scope={"projects:read": True}),
    "scp holds a number": _claims(scp=["projects:read", 1]),
    "alg is a list": _head(alg=["RS256"]),
    "alg is null": _head(alg=None),
    "kid is a number": _head(kid=1),
    "kid is null": _head(kid=None),
    "kid is an object": _head(kid={"x": 1}),
    "typ is a list": _head(typ=["at+jwt"]),
}
NOT_AN_OBJECT = {
    "payload a list": lambda _: RSA.sign(_header(), b"[]"),
    "payload a text": lambda _: RSA.sign(_header(), b'"iss"'),
    "payload null": lambda _: RSA.sign(_header(), b"null"),
    "header a list": lambda i: RSA.sign(b"[]", _payload(i)),
}
UNREADABLE = {
    "claim twice": _raw('"sub": "admin"'),
    "claim twice, once escaped": _raw('"\\u0073ub": "admin"'),
    "claim twice further in": _raw('"org": {"id": "a", "id": "b"}'),
    "header twice": lambda i: RSA.sign(_header()[:-1] + b', "alg": "none"}', _payload(i)),
    "not a number": _raw('"x": NaN'),
    "infinity": _raw('"x": -Infinity'),
    "number of 5000 digits": _raw('"x": ' + "9" * 5000),
    "deep nesting": _raw('"x": ' + "[" * 2500 + "]" * 2500),
    "deep nesting in the header": lambda i: RSA.sign(b"[" * 5000, _payload(i)),
    "payload cut short": lambda i: RSA.sign(_header(), _payload(i)[:-1]),
    "payload with more behind": lambda i: RSA.sign(_header(), _payload(i) + b"{}"),
    "payload empty": lambda _: RSA.sign(_header(), b""),
    "header empty": lambda i: RSA.sign(b"", _payload(i)),
    "payload in UTF-16": lambda i: RSA.sign(_header(), _payload(i).decode().encode("utf-16")),
    "payload in Latin-1": lambda i: RSA.sign(_header(), _splice(_payload(i), '"x": "y"').replace(b"y", b"\xf6")),
    "byte order mark": lambda i: RSA.sign(_header(), b"\xef\xbb\xbf" + _payload(i)),
    "payload with loose last bits": lambda i: _rewritten(
        RSA.sign(_header(), _padded_payload(i, spare=1)), 1, _loosened, key=RSA
    ),
    "payload with padding": lambda i: _rewritten(
        RSA.sign(_header(), _padded_payload(i, spare=1)), 1, lambda part: part + "=" * (-len(part) % 4), key=RSA
    ),
    "payload with a character too many": lambda i: _rewritten(
        RSA.sign(_header(), _padded_payload(i, spare=0)), 1, lambda part: part + "A", key=RSA
    ),
    "payload with a line break": lambda i: _rewritten(i.mint(), 1, lambda part: part[:8] + "\n" + part[8:], key=RSA),
    "header with a line break": lambda i: _rewritten(i.mint(), 0, lambda part: part + "\r\n", key=RSA),
    "header in standard base64": lambda i: _rewritten(i.mint(), 0, lambda part: "+/" + part, key=RSA),
}
NOT_COMPACT = {
    "empty": lambda _: "",
    "dots": lambda _: ".",
    "two parts": lambda i: i.mint().rpartition(".")[0],
    "four parts": lambda i: i.mint() + ".AA",
    "five parts, as encrypted": lambda i: i.mint() + ".AA.AA",
    "not ASCII": lambda i: i.mint() + "\u00e9",
    "full-width digits": lambda i: i.mint() + "\uff10",
    "lone surrogate": lambda i: i.mint() + "\udc80",
    "signature with padding": lambda i: i.mint() + "==",
    "signature with loose last bits": lambda i: _rewritten(i.mint(), 2, _loosened),
    "signature with a line break": lambda i: i.mint() + "\n",
    "signature with a blank": lambda i: i.mint() + " ",
    "signature in standard base64": lambda i: i.mint() + "+/",
}
OVERSIZED = {
    "1 MB of key id": _head(kid="x" * 1_000_000),
    "9 KiB of payload": _claims(pad="x" * 9000),
    "one byte too many": lambda i: i.mint().ljust(8193, "A"),
    "8192 characters, more bytes": lambda i: (i.mint() + "\u00e9").ljust(8193, "\u00e9"),
}

ATTACKS = {
    "wrong signature": SIGNATURE,
    "algorithm not accepted": ALGORITHM,
    "the key is for another algorithm": KEY,
    "no such key": KEY_ID,
    "wrong type": TYPE,
    "critical extension": CRITICAL,
    "wrong issuer": ISSUER,
    "wrong audience": AUDIENCES,
    "an ID token": ID_TOKEN,
    "sub is not": SUBJECT,
    "the organization claim": ORGANIZATION,
    "issued in the future": FUTURE,
    "not yet valid": NOT_YET,
    "lives longer": LIFETIME,
    "exp is out of range": RANGE,
    "a member is missing or of the wrong type": WRONG_MEMBER,
    "not a JSON object": NOT_AN_OBJECT,
    "not base64url of JSON": UNREADABLE,
    "not a JWS": NOT_COMPACT,
    "oversized": OVERSIZED,
}


async def _reason(verifier: TokenVerifier, token: str, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.DEBUG, "tenantry"), pytest.raises(InvalidCredentialError) as caught:
        await verifier.verify(token)
    # What the caller is told, and what is logged, gives nothing away of the token.
    assert caught.value.detail == "The bearer token is not valid."
    assert not token.startswith("ey") or token not in caplog.text
    return caplog.messages[-1]


@pytest.mark.parametrize(
    ("reason", "forge"),
    [
        pytest.param(reason, forge, id=f"{reason}: {name}")
        for reason, forgeries in ATTACKS.items()
        for name, forge in forgeries.items()
    ],
)
async def test_it_is_refused_for_the_right_reason(
    issuer: Issuer,
    verifier: TokenVerifier,
    caplog: pytest.LogCaptureFixture,
    reason: str,
    forge: Callable[[Issuer], str],
) -> None:
    assert (await _reason(verifier, forge(issuer), caplog)).startswith(f"bearer token refused: {reason}")


async def test_the_audience_of_the_client_alone_is_an_id_token_even_where_it_is_ours(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    config = OidcConfig(issuer=issuer.url, audience=CLIENT_ID, client_id=CLIENT_ID)
    async with httpx2.AsyncClient() as client:
        keys = KeySet(config, client, monotonic=lambda: 0.0)
        verifier = TokenVerifier(config, keys, clock=lambda: NOW)
        reason = await _reason(verifier, issuer.mint(claims={"aud": [CLIENT_ID]}), caplog)
    assert "only the client" in reason


async def test_a_refused_token_sends_nothing_to_the_addresses_in_it(issuer: Issuer, verifier: TokenVerifier) -> None:
    token = issuer.mint(STRANGER, header={"kid": RSA.kid, "jku": issuer.url + "/evil", "x5u": issuer.url + "/evil"})
    with pytest.raises(InvalidCredentialError):
        await verifier.verify(token)
    assert issuer.fetches["/evil"] == 0
