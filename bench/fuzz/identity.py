"""What an identity provider answers, and forged tokens."""

import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any, Final

import httpx2

from bench.fuzz.target import Target, parts, require, require_storable, run_now, text
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError, TokenExpiredError
from tenantry.domain.issuers import Issuers
from tenantry.integrations.http_client import FetchError
from tenantry.integrations.oidc.claim_checks import MAX_TOKEN_BYTES
from tenantry.integrations.oidc.claims import Claims, OidcConfig
from tenantry.integrations.oidc.keys import ALGORITHMS, KeySet, PublishedKeys, fetch_published_keys
from tenantry.integrations.oidc.sign_in import PendingSignIn, SignIn, SignInFailedError, UserInfo
from tenantry.integrations.oidc.tokens import TokenVerifier
from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    DISCOVERY,
    JWKS,
    NOW,
    USERINFO,
    Issuer,
    SigningKey,
    signing_key,
)

_ISSUER: Final = "https://issuer.example"
_CONFIG: Final = OidcConfig(Issuers(_ISSUER), (AUDIENCE,), client_id=CLIENT_ID)
_NOW: Final = int(NOW.timestamp())
_TOKEN: Final = "/token"  # noqa: S105  # a path
_BEGUN: Final = PendingSignIn("state-1", "nonce-1", "verifier-of-the-fuzzer", silent=False)


class _Provider:
    """An identity provider with configurable answers, without a network."""

    def __init__(self, answers: dict[str, tuple[int, bytes]] | None = None) -> None:
        self.issuer = Issuer(_key(), signing_key("RS256", "rsa-1"), signing_key("ES256", "ec-1"))
        self.issuer.url = _ISSUER
        self.answers = answers or {}
        self.client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))
        self.keys = KeySet(_CONFIG, self.client)
        self.verifier = TokenVerifier(_CONFIG, self.keys, clock=lambda: NOW)
        self.userinfo = UserInfo(_CONFIG, self.keys, self.client)
        self.sign_in = SignIn(
            _CONFIG,
            self.keys,
            self.client,
            client_id=CLIENT_ID,
            client_secret=None,
            redirect_uri="https://tenantry.example/sign-in/callback",
            clock=lambda: NOW,
        )
        run_now(self.keys.refresh())

    def metadata(self) -> bytes:
        more = {
            "authorization_endpoint": _ISSUER + "/authorize",
            "token_endpoint": _ISSUER + _TOKEN,
        }
        return json.dumps({**json.loads(self.issuer.document(DISCOVERY).body), **more}).encode()

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path in self.answers:
            status, body = self.answers[path]
        else:
            status, body = (
                200,
                self.metadata() if path == DISCOVERY else self.issuer.document(path).body,
            )

        async def stream() -> AsyncIterator[bytes]:
            yield body

        return httpx2.Response(status, content=stream())


@cache
def _provider() -> _Provider:
    return _Provider()


def _key() -> SigningKey:
    return signing_key("EdDSA", "ed-1")


def check_token(data: bytes) -> None:
    """Require that any forged text is rejected, with an error that repeats nothing of it."""
    if _verified(data.decode("latin-1")) is not None:
        require(data.decode() in _good_tokens(), "a forged token is accepted", data)


def check_token_content(data: bytes) -> None:
    """Require the same of signed content, and that accepted claims equal the standard library's
    reading.
    """
    header, payload = parts(data, 2)
    claims = _verified(_key().sign(header, payload))
    if claims is None:
        return
    require_storable(claims, MAX_TOKEN_BYTES)
    content = json.loads(payload)
    require(
        json.loads(header)["alg"] in ("EdDSA", "Ed25519"), "another algorithm is accepted", header
    )
    require(content["iss"] == claims.issuer == _ISSUER, "another issuer is accepted", content)
    require(
        AUDIENCE in (content["aud"] if isinstance(content["aud"], list) else [content["aud"]]),
        "another audience is accepted",
        content,
    )
    require(
        content["exp"] > _NOW - 31
        and content["iat"] < _NOW + 31
        and content["exp"] - content["iat"] <= 86_430,
        "a time out of bounds",
        content,
    )
    require(
        content["sub"] == claims.subject and claims.subject.isprintable(),
        "another subject",
        content,
    )


def _verified(token: str) -> Claims | None:
    verifier = _provider().verifier
    claims: Claims | None = None
    try:
        claims = run_now(verifier.verify(token))
    except (InvalidCredentialError, TokenExpiredError) as error:
        require(len(error.detail) < 60, "an error is too long", error.detail)
    explained = run_now(verifier.explain(token))
    require(
        (explained.refusal is None) is (claims is not None),
        "the explanation contradicts the verification",
        token,
        explained,
    )
    return claims


@cache
def _good_tokens() -> frozenset[str]:
    issuer = _provider().issuer
    return frozenset(issuer.mint(key) for key in issuer.keys)


def _content_seeds() -> list[bytes]:
    header = b'{"alg": "EdDSA", "kid": "ed-1", "typ": "at+jwt"}\n'
    claims = {"iss": _ISSUER, "aud": AUDIENCE, "sub": "user_1", "iat": _NOW, "exp": _NOW + 3600}
    content = [
        json.dumps({**claims, **more}).encode()
        for more in (
            {},
            {
                "org_id": "acme",
                "org_role": "admin",
                "scope": "projects:read",
                "email": "a@b",
                "email_verified": True,
            },
            {"aud": [AUDIENCE, CLIENT_ID], "nbf": _NOW, "scp": ["a:b"], "exp": _NOW + 0.5},
            {"exp": 10**400, "iat": 10**400},
            {"exp": 1e300, "iat": 1e300},
            {"sub": "\u00e9", "a": {"b": [None, True, 1e5]}},
            {"org_id": "\ud800"},
            {
                "org_id": None,
                "org_role": ["admin", "Owner"],
                "nonce": None,
                "nbf": None,
                "token_use": "access",
            },
        )
    ]
    return [
        *(header + one for one in content),
        b'{"alg": "EdDSA", "crit": ["b64"], "b64": false}\n{}',
        b'{"alg": "Ed25519", "kid": null, "typ": null}\n' + content[0],
        header + b"[" * 3000,
        header + b'{"iss":' * 900,
        b"\n",
    ]


def check_keys(data: bytes) -> None:
    """Require that a key set raises only declared errors, and that its keys reject a wrong
    signature.
    """
    published = _fetched({JWKS: (200, data)})
    if published is None:
        return
    for (_, alg), keys in published.by_id.items():
        for key in keys:
            require(
                ALGORITHMS[alg].verify(b"a.b", b"\1" * 64, key) is False,
                "a wrong signature is accepted",
            )


def check_metadata(data: bytes) -> None:
    """Require that a discovery document raises only declared errors and yields only web
    addresses.
    """
    provider = _Provider({DISCOVERY: (200, data)})
    if provider.keys.metadata is None:
        require(provider.keys.trouble is not None, "neither accepted nor rejected")
        return
    try:
        address, _ = run_now(provider.sign_in.begin())
    except AuthUnavailableError:
        return
    require(_is_address(address), "an invalid address", address)
    back = provider.sign_in.end_session_url("https://tenantry.example/signed-out")
    require(back is None or _is_address(back), "an invalid address", back)


def _is_address(text: str) -> bool:
    """Return whether a browser follows this text in a Location header."""
    return (
        text.lower().startswith(("https://", "http://")) and text.isascii() and text.isprintable()
    )


def _fetched(answers: dict[str, tuple[int, bytes]]) -> PublishedKeys | None:
    provider = _provider()
    provider.answers = answers
    try:
        return run_now(fetch_published_keys(_CONFIG, provider.client))
    except (FetchError, httpx2.HTTPError, *NOT_JSON):
        return None
    finally:
        provider.answers = {}


def _keys_seeds() -> list[bytes]:
    whole = _provider().issuer.document(JWKS).body
    broken = [
        {"kty": "RSA", "n": 5, "e": "AQAB"},
        {"kty": "RSA", "n": "AA" * 200, "e": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": None},
        {"kty": "OKP", "crv": [], "x": "AA"},
        {"kty": [], "kid": {}},
        {
            **signing_key("RS256", "rsa-1").jwk(),
            "kid": 7,
            "use": None,
            "alg": None,
            "key_ops": [],
            "issuer": [],
        },
    ]
    return [
        whole,
        json.dumps({"keys": broken}).encode(),
        b'{"keys": [' + b"[" * 1500 + b"]" * 1500 + b"]}",
        b'{"keys":["\xff"]}',
    ]


def check_userinfo(data: bytes) -> None:
    """Require that an answer of userinfo yields an e-mail address or None, and no error."""
    provider = _provider()
    provider.answers = {USERINFO: (200, data)}
    email = run_now(provider.userinfo.userinfo_email("token", "user_1"))
    provider.answers = {}
    require(
        email is None or ("@" in email and len(email) <= 254 and email.isprintable()),
        "an invalid e-mail address",
        email,
    )
    require_storable(email)


def check_callback(data: bytes) -> None:
    """Require that callback and token answer raise only declared errors and match the pending
    sign-in.
    """
    query, status, id_token, body = parts(data, 4)
    provider = _provider()
    if id_token:
        body = body.replace(b"@", provider.issuer.mint(_key(), claims=_given(id_token)).encode())
    provider.answers = {
        _TOKEN: (int(status) if status.isdigit() and 200 <= int(status[:9]) < 600 else 200, body)
    }
    answer = dict(httpx2.QueryParams(text(query)))
    try:
        person = run_now(provider.sign_in.finish(_BEGUN, answer))
    except (SignInFailedError, AuthUnavailableError) as error:
        require(len(str(error)) < 200, "a long error", error)
        return
    finally:
        provider.answers = {}
    require(answer["state"] == _BEGUN.state, "the answer to another sign-in is accepted", answer)
    require_storable(person.claims)
    require(
        person.name is None or (person.name.isprintable() and len(person.name) <= 100),
        "an unprintable or long name",
        person.name,
    )
    require_storable(person.name)


def _given(claims: bytes) -> dict[str, Any]:
    try:
        given = json.loads(claims)
        json.dumps(given).encode()
    except (ValueError, RecursionError):
        given = None
    good = {"aud": CLIENT_ID, "nonce": _BEGUN.nonce}
    return {**good, **given} if isinstance(given, dict) else good


_NAMES: Final = (
    *(
        b'"%s"' % name
        for name in (
            b"alg kid typ crit b64 EdDSA none iss aud sub exp iat nbf nonce at_hash azp scope scp email "
            b"email_verified org_id org_role keys kty crv RSA EC OKP oct P-256 Ed25519 n e x y use key_ops "
            b"issuer jwks_uri token_endpoint access_token id_token error name "
        ).split()
    ),
    b"1e999",
    b"NaN",
    b"\\ud800",
    b"\\u0000",
    _ISSUER.encode(),
    AUDIENCE.encode(),
    str(_NOW).encode(),
)

TARGETS: Final = (
    Target(
        name="token",
        reads="a bearer token, from any client",
        check=check_token,
        seeds=lambda: [
            *(token.encode() for token in _good_tokens()),
            b"..",
            b"a.b.c",
            b"e30.e30.",
            b"\xff.\xff.",
        ],
        words=(
            b".",
            b"eyJhbGciOiJub25lIn0",
            b"e30",
            b"=",
            b"eyJhbGciOiJFZERTQSIsImtpZCI6ImVkLTEifQ",
        ),
    ),
    Target(
        name="token-content",
        reads="header and claims of a signed token, from the provider",
        check=check_token_content,
        seeds=_content_seeds,
        words=_NAMES,
    ),
    Target(
        name="jwks",
        reads="a key set, from the provider",
        check=check_keys,
        seeds=_keys_seeds,
        words=_NAMES,
        max_size=8192,
    ),
    Target(
        name="discovery",
        reads="a discovery document, from the provider",
        check=check_metadata,
        seeds=lambda: [
            _provider().metadata(),
            b'{"issuer": "\xff"}',
            b"[" * 2000,
            b'{"issuer":"https://issuer.example","jwks_uri":"http://[::1"}',
            b'{"issuer":"https://issuer.example","jwks_uri":"https://\\u0000/"}',
        ],
        words=(*_NAMES, b"https://", b"http://[::1]", b"://", b"@", b"\\u0000"),
    ),
    Target(
        name="userinfo",
        reads="an answer of userinfo, from the provider",
        check=check_userinfo,
        seeds=lambda: [
            b'{"sub": "user_1", "email": "a@b.example", "email_verified": true}',
            b'{"sub": "\xff"}',
            b'{"sub":"user_1","email":' + b"[" * 2000 + b"]" * 2000 + b"}",
        ],
        words=_NAMES,
    ),
    Target(
        name="sign-in",
        reads="the callback's query and the token answer, from the provider",
        check=check_callback,
        seeds=lambda: [
            b'code=a&state=state-1&iss=https%3A%2F%2Fissuer.example\n200\n{}\n{"access_token": "a", "id_token": "@"}',
            b'code=a&state=state-1\n200\n{"azp": 1, "at_hash": [], "name": ""}\n{"access_token": "@", "id_token": "@"}',
            b"error=login_required&state=state-1\n200\n\n",
            b'code=a&state=state-1\n400\n\n{"error": "\xff"}',
            b'code=a&state=state-1\n200\n\n{"access_token": "\xff", "id_token": "a"}',
            b"state=\xc3\x28%ff%00&code=\n500\n\n",
        ],
        words=(*_NAMES, b"state=state-1", b"code=", b"error=", b"&", b"%00", b"@"),
    ),
)
