"""What an identity provider answers, and tokens in its name."""

import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any, Final

import httpx2

from bench.fuzz.target import Target, at_once, hold, only_text, parts, text
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError, TokenExpiredError
from tenantry.integrations.oidc.claims import Claims, OidcConfig
from tenantry.integrations.oidc.jwks import ALGORITHMS, FetchError, PublishedKeys, fetch_published_keys
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.sign_in import PendingSignIn, SignIn, SignInFailedError, UserInfo
from tenantry.integrations.oidc.tokens import TokenVerifier
from tests.support.issuer import AUDIENCE, CLIENT_ID, DISCOVERY, JWKS, NOW, USERINFO, Issuer, SigningKey, signing_key

_ISSUER: Final = "https://issuer.example"
_CONFIG: Final = OidcConfig(issuer=_ISSUER, audience=AUDIENCE, client_id=CLIENT_ID)
_NOW: Final = int(NOW.timestamp())
_TOKEN: Final = "/token"  # noqa: S105  # a path
_BEGUN: Final = PendingSignIn("state-1", "nonce-1", "verifier-of-the-fuzzer", silent=False)


class _Provider:
    """An identity provider that answers what it is told to, without a network."""

    def __init__(self, answers: dict[str, tuple[int, bytes]] | None = None) -> None:
        self.issuer = Issuer(_key(), signing_key("RS256", "rsa-1"), signing_key("ES256", "ec-1"))
        self.issuer.url = _ISSUER
        self.answers = answers or {}
        self.client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))
        self.keys = KeySet(_CONFIG, self.client)
        self.verifier = TokenVerifier(_CONFIG, self.keys, clock=lambda: NOW)
        self.userinfo = UserInfo(_CONFIG, self.keys, self.client)
        self.sign_in = SignIn(
            _CONFIG, self.keys, self.client, client_id=CLIENT_ID, client_secret=None,
            redirect_uri="https://tenantry.example/sign-in/callback", clock=lambda: NOW,
        )  # fmt: skip
        at_once(self.keys.refresh())

    def metadata(self) -> bytes:
        more = {"authorization_endpoint": _ISSUER + "/authorize", "token_endpoint": _ISSUER + _TOKEN}
        return json.dumps({**json.loads(self.issuer.document(DISCOVERY).body), **more}).encode()

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path in self.answers:
            status, body = self.answers[path]
        else:
            status, body = 200, self.metadata() if path == DISCOVERY else self.issuer.document(path).body

        async def stream() -> AsyncIterator[bytes]:
            yield body

        return httpx2.Response(status, content=stream())


@cache
def _provider() -> _Provider:
    return _Provider()


def _key() -> SigningKey:
    return signing_key("EdDSA", "ed-1")


def check_token(data: bytes) -> None:
    """Any text is refused, in words that hold nothing of it."""
    if _verified(data.decode("latin-1")) is not None:
        hold(data.decode() in _good_tokens(), "a token that nobody issued is taken", data)


def check_token_content(data: bytes) -> None:
    """The same for what the provider has signed; what is taken is what a plain reading of it takes too."""
    header, payload = parts(data, 2)
    claims = _verified(_key().sign(header, payload))
    if claims is None:
        return
    only_text(claims, 8192)
    said = json.loads(payload)
    hold(json.loads(header)["alg"] == "EdDSA", "another algorithm is taken", header)
    hold(said["iss"] == claims.issuer == _ISSUER, "another issuer is taken", said)
    hold(AUDIENCE in (said["aud"] if isinstance(said["aud"], list) else [said["aud"]]), "not for this API", said)
    hold(
        said["exp"] > _NOW - 31 and said["iat"] < _NOW + 31 and said["exp"] - said["iat"] <= 86_400, "a bad time", said
    )
    hold(said["sub"] == claims.subject and claims.subject.isprintable(), "another subject", said)


def _verified(token: str) -> Claims | None:
    verifier = _provider().verifier
    claims: Claims | None = None
    try:
        claims = at_once(verifier.verify(token))
    except (InvalidCredentialError, TokenExpiredError) as error:
        hold(len(error.detail) < 60, "a refusal says too much", error.detail)
    told = at_once(verifier.explain(token))
    hold((told.refusal is None) is (claims is not None), "what is explained is not what is done", token, told)
    return claims


@cache
def _good_tokens() -> frozenset[str]:
    issuer = _provider().issuer
    return frozenset(issuer.mint(key) for key in issuer.keys)


def _content_seeds() -> list[bytes]:
    header = b'{"alg": "EdDSA", "kid": "ed-1", "typ": "at+jwt"}\n'
    claims = {"iss": _ISSUER, "aud": AUDIENCE, "sub": "user_1", "iat": _NOW, "exp": _NOW + 3600}
    said = [
        json.dumps({**claims, **more}).encode()
        for more in (
            {},
            {"org_id": "acme", "org_role": "admin", "scope": "projects:read", "email": "a@b", "email_verified": True},
            {"aud": [AUDIENCE, CLIENT_ID], "nbf": _NOW, "scp": ["a:b"], "exp": _NOW + 0.5},
            {"exp": 10**400, "iat": 10**400},
            {"exp": 1e300, "iat": 1e300},
            {"sub": "\u00e9", "a": {"b": [None, True, 1e5]}},
            {"org_id": "\ud800"},
        )
    ]
    return [
        *(header + one for one in said),
        b'{"alg": "EdDSA", "crit": ["b64"], "b64": false}\n{}',
        header + b"[" * 3000,
        header + b'{"iss":' * 900,
        b"\n",
    ]


def check_keys(data: bytes) -> None:
    """A key set, whatever is in it: only what is declared may be raised, and its keys can be used to refuse."""
    published = _fetched({JWKS: (200, data)})
    if published is None:
        return
    for (_, alg), keys in published.by_id.items():
        for key in keys:
            hold(ALGORITHMS[alg].verify(b"a.b", b"\1" * 64, key) is False, "a made-up signature is taken")


def check_metadata(data: bytes) -> None:
    """A discovery document: only what is declared may be raised, and nothing but https is asked."""
    provider = _Provider({DISCOVERY: (200, data)})
    if provider.keys.metadata is None:
        hold(provider.keys.trouble is not None, "neither read nor refused")
        return
    try:
        address, _ = at_once(provider.sign_in.begin())
    except AuthUnavailableError:
        return
    hold(_is_address(address), "an address that is none", address)
    back = provider.sign_in.end_session_url("https://tenantry.example/signed-out")
    hold(back is None or _is_address(back), "an address that is none", back)


def _is_address(text: str) -> bool:
    """Whether a header can hold it, and a browser goes there."""
    return text.lower().startswith(("https://", "http://")) and text.isascii() and text.isprintable()


def _fetched(answers: dict[str, tuple[int, bytes]]) -> PublishedKeys | None:
    provider = _provider()
    provider.answers = answers
    try:
        return at_once(fetch_published_keys(_CONFIG, provider.client))
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
    ]
    return [
        whole,
        json.dumps({"keys": broken}).encode(),
        b'{"keys": [' + b"[" * 1500 + b"]" * 1500 + b"]}",
        b'{"keys":["\xff"]}',
    ]


def check_userinfo(data: bytes) -> None:
    """An answer of userinfo is an address, or none; it is never an error."""
    provider = _provider()
    provider.answers = {USERINFO: (200, data)}
    email = at_once(provider.userinfo.userinfo_email("token", "user_1"))
    provider.answers = {}
    hold(email is None or ("@" in email and len(email) <= 254 and email.isprintable()), "no address", email)
    only_text(email)


def check_callback(data: bytes) -> None:
    """What the provider sends a browser back with, and what it gives for the code."""
    query, status, id_token, body = parts(data, 4)
    provider = _provider()
    if id_token:
        body = body.replace(b"@", provider.issuer.mint(_key(), claims=_given(id_token)).encode())
    provider.answers = {_TOKEN: (int(status) if status.isdigit() and 200 <= int(status[:9]) < 600 else 200, body)}
    answer = dict(httpx2.QueryParams(text(query)))
    try:
        person = at_once(provider.sign_in.finish(_BEGUN, answer))
    except (SignInFailedError, AuthUnavailableError) as error:
        hold(len(str(error)) < 200, "a long refusal", error)
        return
    finally:
        provider.answers = {}
    hold(answer["state"] == _BEGUN.state, "the answer to another sign-in is taken", answer)
    only_text(person.claims)
    hold(person.name is None or (person.name.isprintable() and len(person.name) <= 100), "a bad name", person.name)
    only_text(person.name)


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
            b"alg",
            b"kid",
            b"typ",
            b"crit",
            b"b64",
            b"EdDSA",
            b"none",
            b"iss",
            b"aud",
            b"sub",
            b"exp",
            b"iat",
            b"nbf",
            b"nonce",
            b"at_hash",
            b"azp",
            b"scope",
            b"scp",
            b"email",
            b"email_verified",
            b"org_id",
            b"org_role",
            b"keys",
            b"kty",
            b"crv",
            b"RSA",
            b"EC",
            b"OKP",
            b"oct",
            b"P-256",
            b"Ed25519",
            b"n",
            b"e",
            b"x",
            b"y",
            b"use",
            b"key_ops",
            b"issuer",
            b"jwks_uri",
            b"token_endpoint",
            b"access_token",
            b"id_token",
            b"error",
            b"name",
        )
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
        meets="a bearer token, of anybody",
        check=check_token,
        seeds=lambda: [*(token.encode() for token in _good_tokens()), b"..", b"a.b.c", b"e30.e30.", b"\xff.\xff."],
        words=(b".", b"eyJhbGciOiJub25lIn0", b"e30", b"=", b"eyJhbGciOiJFZERTQSIsImtpZCI6ImVkLTEifQ"),
    ),
    Target(
        name="token-content",
        meets="header and claims of a token that the provider has signed",
        check=check_token_content,
        seeds=_content_seeds,
        words=_NAMES,
    ),
    Target(
        name="jwks", meets="a key set, of the provider", check=check_keys, seeds=_keys_seeds, words=_NAMES, largest=8192
    ),
    Target(
        name="discovery",
        meets="a discovery document, of the provider",
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
        meets="an answer of userinfo, of the provider",
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
        meets="the address that a browser is sent back with, and the tokens for its code, of the provider",
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
