"""Forged tokens in one table, each with exactly one defect, so that each check is tested by itself.

The same rows go through the verifier, where the reason shows, and through the whole service, where
it must not.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from joserfc.jwk import RSAKey

from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    JWKS,
    NOW,
    Issuer,
    SigningKey,
    segment,
    signing_key,
)

Forge = Callable[[Issuer], str]

RSA = signing_key("RS256", "rsa-1")
EC = signing_key("ES256", "ec-1")
ED25519 = signing_key("EdDSA", "ed-1")
ATTACKER = signing_key("RS256", "outsider")
EC_ATTACKER = signing_key("ES256", "ec-outsider")
P384 = signing_key("ES384", "p384-1")
P521 = signing_key("ES512", "p521-1")
PSS = signing_key("PS256", "pss-1")
PUBLISHED = (RSA, EC, ED25519, P384, P521, PSS)
"""The keys that the provider of these tests publishes."""
ISSUED = int(NOW.timestamp())
HOUR, DAY = 3600, 24 * 3600


def _header(key: SigningKey = RSA, **members: Any) -> bytes:
    return json.dumps({"alg": key.alg, "kid": key.kid, **members}).encode()


def _payload(issuer: Issuer, without: str = "", **members: Any) -> bytes:
    good = {
        "iss": issuer.url,
        "aud": AUDIENCE,
        "sub": "user_1",
        "iat": ISSUED,
        "exp": ISSUED + HOUR,
    }
    return json.dumps(
        {name: value for name, value in {**good, **members}.items() if name != without}
    ).encode()


def _splice(payload: bytes, members: str) -> bytes:
    """The payload with members added to its end as they are written."""
    return payload[:-1] + b", " + members.encode() + b"}"


def _unsigned(issuer: Issuer, header: dict[str, Any], signature: bytes = b"") -> str:
    return (
        f"{segment(json.dumps(header).encode())}.{segment(_payload(issuer))}.{segment(signature)}"
    )


def _hmac_with(secret: Callable[[RSAKey], bytes]) -> Forge:
    """A token signed with HS256, whose secret is the provider's public key in some form."""

    def forge(issuer: Issuer) -> str:
        assert isinstance(RSA.private, RSAKey)
        signed = _unsigned(issuer, {"alg": "HS256", "kid": RSA.kid}).rstrip(".")
        return (
            f"{signed}.{segment(hmac.digest(secret(RSA.private), signed.encode(), hashlib.sha256))}"
        )

    return forge


def _jwk_text(key: RSAKey) -> bytes:
    return json.dumps(key.as_dict(private=False), separators=(",", ":"), sort_keys=True).encode()


def _other_signature(issuer: Issuer, key: SigningKey, signature: bytes) -> str:
    return issuer.mint(key).rpartition(".")[0] + "." + segment(signature)


def _resigned(key: SigningKey, change: Callable[[bytes], bytes]) -> Forge:
    """A good token with its true signature changed."""

    def forge(issuer: Issuer) -> str:
        signed = issuer.mint(key).rpartition(".")[0]
        return f"{signed}.{segment(change(key.signature(signed.encode())))}"

    return forge


def _der_signature(issuer: Issuer) -> str:
    signed = issuer.mint(EC).rpartition(".")[0]
    raw = EC.signature(signed.encode())
    parts = [
        b"\x02" + bytes([len(part)]) + part for part in (b"\x00" + raw[:32], b"\x00" + raw[32:])
    ]
    body = b"".join(parts)
    return f"{signed}.{segment(b'0' + bytes([len(body)]) + body)}"


def _loosened(part: str) -> str:
    """Another base64url text of the same bytes: the unused bits of its last character are not
    zero.
    """
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    assert len(part) % 4
    return part[:-1] + digits[digits.index(part[-1]) + 1]


def _rewritten(
    token: str, number: int, change: Callable[[str], str], key: SigningKey | None = None
) -> str:
    """The token with one of its three segments written otherwise; signed anew over that, where a
    key is given.
    """
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


def _claims(**claims: Any) -> Forge:
    return lambda issuer: issuer.mint(claims=claims)


def _head(**header: Any) -> Forge:
    return lambda issuer: issuer.mint(header=header)


def _raw(members: str, without: str = "") -> Forge:
    return lambda issuer: RSA.sign(_header(), _splice(_payload(issuer, without), members))


def _without(*names: str) -> Forge:
    return lambda issuer: issuer.mint(without=names)


SIGNATURE = {
    "another key under a known id": lambda i: i.mint(ATTACKER, header={"kid": RSA.kid}),
    "another key without an id": lambda i: i.mint(ATTACKER, without=("kid",)),
    "another EC key": lambda i: i.mint(EC_ATTACKER, header={"kid": EC.kid}),
    "another Ed25519 key": lambda i: i.mint(
        signing_key("EdDSA", "ed-outsider"), header={"kid": ED25519.kid}
    ),
    "embedded jwk": lambda i: i.mint(ATTACKER, header={"kid": RSA.kid, "jwk": ATTACKER.jwk()}),
    "embedded jwk under the kid of a known key": lambda i: i.mint(
        ATTACKER, header={"kid": RSA.kid, "jwk": {**ATTACKER.jwk(), "kid": RSA.kid}}
    ),
    "embedded jwk without a kid": lambda i: i.mint(
        ATTACKER, header={"jwk": ATTACKER.jwk()}, without=("kid",)
    ),
    "x5c": lambda i: i.mint(ATTACKER, header={"kid": RSA.kid, "x5c": ["MIIB"]}),
    "changed payload": lambda i: _rewritten(
        i.mint(), 1, lambda _: segment(_payload(i, sub="admin"))
    ),
    "changed header": lambda i: _rewritten(i.mint(), 0, lambda _: segment(_header(typ="JWT"))),
    "empty signature": lambda i: _other_signature(i, RSA, b""),
    "signature of another token": lambda i: (
        i.mint().rpartition(".")[0] + "." + i.mint(claims={"sub": "user_2"}).rpartition(".")[2]
    ),
    "signature cut short": _resigned(RSA, lambda raw: raw[:-1]),
    "signature extended": _resigned(RSA, lambda raw: raw + b"\x00"),
    "ES256 signature cut short": _resigned(EC, lambda raw: raw[:-1]),
    "EdDSA signature extended": _resigned(ED25519, lambda raw: raw + b"\x00"),
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
    "none with the signature of a good token": lambda i: (
        _unsigned(i, {"alg": "none"}).rstrip(".") + "." + i.mint().rpartition(".")[2]
    ),
    "none with a key id": lambda i: _unsigned(i, {"alg": "none", "kid": RSA.kid}),
    "NoNe": lambda i: _unsigned(i, {"alg": "NoNe"}),
    "NONE": lambda i: _unsigned(i, {"alg": "NONE"}),
    "None, with a signature": lambda i: _unsigned(
        i, {"alg": "None", "kid": RSA.kid}, RSA.signature(b"")
    ),
    "none and a blank": lambda i: _unsigned(i, {"alg": "none "}),
    "empty": lambda i: _unsigned(i, {"alg": ""}),
    "HS256 with the public key as PEM": _hmac_with(lambda key: key.as_pem(private=False)),
    "HS256 with the public key as PEM without its last line break": _hmac_with(
        lambda key: key.as_pem(private=False).rstrip()
    ),
    "HS256 with the public key as DER": _hmac_with(lambda key: key.as_der(private=False)),
    "HS256 with the public key as JWK": _hmac_with(_jwk_text),
    "HS256 with the modulus": _hmac_with(lambda key: str(key["n"]).encode()),
    "HS256 with nothing": _hmac_with(lambda _: b""),
    "HS384": _head(alg="HS384"),
    "HS512": _head(alg="HS512"),
    "RSA1_5": _head(alg="RSA1_5"),
    "Ed448": _head(alg="Ed448"),
    "ESB256": _head(alg="ESB256"),
    "rs256": _head(alg="rs256"),
    "ES256K": _head(alg="ES256K"),
}
KEY = {
    "RSA key for ES256": lambda i: i.mint(EC, header={"kid": RSA.kid}),
    "EC key for RS256": lambda i: i.mint(RSA, header={"kid": EC.kid}),
    "EC key for EdDSA": lambda i: i.mint(ED25519, header={"kid": EC.kid}),
    "RS256 key for RS512": _head(alg="RS512"),
    "RS256 key for PS256": lambda i: i.mint(PSS, header={"kid": RSA.kid}),
    "PS256 key for RS256": lambda i: i.mint(RSA, header={"kid": PSS.kid}),
    "PS256 key for PS512": lambda i: i.mint(PSS, header={"alg": "PS512"}),
    "P-256 key for ES384": lambda i: i.mint(EC, header={"alg": "ES384"}),
    "P-384 key for ES256": lambda i: i.mint(P384, header={"alg": "ES256"}),
    "P-521 key for ES384": lambda i: i.mint(P384, header={"kid": P521.kid}),
    "RSA key for Ed25519": lambda i: i.mint(ED25519, header={"kid": RSA.kid, "alg": "Ed25519"}),
}
KEY_ID = {
    "path": _head(kid="../../../../../etc/passwd"),
    "SQL": _head(kid="' OR 1=1; --"),
    "command": _head(kid="| touch /tmp/x"),
    "address": _head(kid="https://evil.example/key"),
    "empty": _head(kid=""),
    "NUL": _head(kid="rsa-1\x00"),
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
    "a prefix of the audience": _claims(aud="tenantry"),
    "more than ours": _claims(aud="tenantry-api-2"),
    "the client's alone": _claims(aud=CLIENT_ID),
}
ID_TOKEN = {
    "nonce": _claims(nonce="n-0S6_WzA2Mj"),
    "nonce that is false": _claims(nonce=False),
    "at_hash": _claims(at_hash="MTIzNDU2Nzg5MDEyMzQ1Ng"),
    "token_use": _claims(token_use="id"),
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
    "true": _claims(org_id=True),
    "NUL": _claims(org_id="acme\x00"),
}
FUTURE = {
    "by 31 seconds": _claims(iat=ISSUED + 31),
    "by milliseconds instead of seconds": _claims(iat=ISSUED * 1000),
    "by infinity": _raw('"iat": 1e400', without="iat"),
}
NOT_YET = {"by 31 seconds": _claims(nbf=ISSUED + 31), "by infinity": _raw('"nbf": 1e400')}
LIFETIME = {
    "a day, the leeway and a second": _claims(exp=ISSUED + DAY + 31),
    "a year": _claims(exp=ISSUED + 365 * DAY),
    "issued long ago": _claims(iat=0),
    "issued beyond numbers": _claims(iat=-(10**400)),
}
RANGE = {
    "expires after the year 9999": _claims(exp=10**12),
    "expires beyond numbers": _claims(exp=10**400),
    "expires at minus infinity": _raw('"exp": -1e400', without="exp"),
}
ABSENT = {
    **{
        f"{name} is absent": {"missing": _without(name), "null": _claims(**{name: None})}
        for name in ("exp", "iat", "sub", "iss", "aud")
    },
    "alg is absent": {"missing": _without("alg"), "null": _head(alg=None)},
}
_OF_WRONG_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "exp": {"true": True, "a text": str(ISSUED + HOUR)},
    "iat": {"true": True, "a text": str(ISSUED)},
    "nbf": {"false": False, "a text": str(ISSUED)},
    "sub": {"a number": 1, "a list": ["user_1"]},
    "iss": {"a list": ["https://id.example"]},
    "aud": {"an object": {AUDIENCE: True}, "a list with a number": [AUDIENCE, 1]},
    "scope": {"a number": 7, "an object": {"projects:read": True}},
    "scp": {"a list with a number": ["projects:read", 1]},
}
_HEADERS_OF_WRONG_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "alg": {"a list": ["RS256"]},
    "kid": {"a fraction": 1.5, "true": True, "an object": {"x": 1}},
    "typ": {"a list": ["at+jwt"]},
}
WRONG_TYPE = {
    f"{name} is of the wrong type": {kind: make(**{name: value}) for kind, value in values.items()}
    for make, table in ((_claims, _OF_WRONG_TYPE), (_head, _HEADERS_OF_WRONG_TYPE))
    for name, values in table.items()
}
NOT_AN_OBJECT = {
    "payload a list": lambda _: RSA.sign(_header(), b"[]"),
    "payload a text": lambda _: RSA.sign(_header(), b'"iss"'),
    "payload null": lambda _: RSA.sign(_header(), b"null"),
    "header a list": lambda i: RSA.sign(b"[]", _payload(i)),
}
UNREADABLE = {
    "half of a surrogate pair as the key id": _head(kid="\ud800"),
    "half of a surrogate pair as the organization": _claims(org_id="\ud800"),
    "half of a surrogate pair in a claim": _raw('"org_role": "\\ud800"'),
    "half of a surrogate pair as a name": _raw('"\\uDFFFa": 1'),
    "half of a surrogate pair in the header": lambda i: RSA.sign(
        _header()[:-1] + b', "\\ud800": 1}', _payload(i)
    ),
    "claim twice": _raw('"sub": "admin"'),
    "claim twice, once escaped": _raw('"\\u0073ub": "admin"'),
    "claim twice further in": _raw('"org": {"id": "a", "id": "b"}'),
    "kid twice": lambda i: RSA.sign(_header()[:-1] + b', "kid": "rsa-1"}', _payload(i)),
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
    "payload in Latin-1": lambda i: RSA.sign(
        _header(), _splice(_payload(i), '"x": "y"').replace(b"y", b"\xf6")
    ),
    "byte order mark": lambda i: RSA.sign(_header(), b"\xef\xbb\xbf" + _payload(i)),
    "payload with loose last bits": lambda i: _rewritten(
        RSA.sign(_header(), _padded_payload(i, spare=1)), 1, _loosened, key=RSA
    ),
    "payload with padding": lambda i: _rewritten(
        RSA.sign(_header(), _padded_payload(i, spare=1)),
        1,
        lambda part: part + "=" * (-len(part) % 4),
        key=RSA,
    ),
    "payload with a character too many": lambda i: _rewritten(
        RSA.sign(_header(), _padded_payload(i, spare=0)), 1, lambda part: part + "A", key=RSA
    ),
    "payload with a line break": lambda i: _rewritten(
        i.mint(), 1, lambda part: part[:8] + "\n" + part[8:], key=RSA
    ),
    "header with a line break": lambda i: _rewritten(
        i.mint(), 0, lambda part: part + "\r\n", key=RSA
    ),
    "header in standard base64": lambda i: _rewritten(
        i.mint(), 0, lambda part: "+/" + part, key=RSA
    ),
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
    "signature with a line break": lambda i: _rewritten(
        i.mint(), 2, lambda part: part[:8] + "\n" + part[8:]
    ),
    "signature with a blank": lambda i: _rewritten(
        i.mint(), 2, lambda part: part[:8] + " " + part[8:]
    ),
    "signature in standard base64": lambda i: i.mint() + "+/",
}
OVERSIZED = {
    "1 MB of key id": _head(kid="x" * 1_000_000),
    "17 KiB of payload": _claims(pad="x" * 17_000),
    "one byte too many": lambda i: i.mint().ljust(16_385, "A"),
    "one character too many, more bytes": lambda i: (i.mint() + "\u00e9").ljust(16_385, "\u00e9"),
}

ATTACKS: Final[Mapping[str, Mapping[str, Forge]]] = {
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
    **ABSENT,
    **WRONG_TYPE,
    "not a JSON object": NOT_AN_OBJECT,
    "not base64url of JSON": UNREADABLE,
    "not a JWS": NOT_COMPACT,
    "too long: at most 16,384 characters": OVERSIZED,
}
"""The forgeries, by the reason for which they are refused, as the verifier's log has it."""


def remote(attacker: Issuer) -> Mapping[str, Forge]:
    """Tokens that tell where to fetch their key: from ``attacker``, who really publishes it."""
    keys, certificate = attacker.url + JWKS, attacker.url + "/certificate.pem"
    hints: dict[str, dict[str, Any]] = {
        "jku": {"jku": keys},
        "jku and the kid of the attacker": {"jku": keys, "kid": ATTACKER.kid},
        "x5u": {"x5u": certificate},
        "kid that is an address": {"kid": keys},
        "issuer in the header": {"iss": attacker.url, "jku": keys},
    }
    return {name: _hinting(hint) for name, hint in hints.items()}


def _hinting(hint: Mapping[str, Any]) -> Forge:
    return lambda issuer: issuer.mint(ATTACKER, header={"kid": RSA.kid, **hint})
