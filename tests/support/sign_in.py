"""Sign in at the development identity provider, as a browser and as a client."""

import base64
import contextlib
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import httpx2
from joserfc import jwt
from joserfc.jwk import KeySet

from tenantry.common.secret import Secret
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_tokens import DemoUser

AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "dashboard"
CLIENT_SECRET: Final = "a secret: 100% dev+only"
CALLBACK: Final = "http://127.0.0.1:3001/auth/callback"
VERIFIER: Final = "a-verifier-of-at-least-forty-three-characters"
CHALLENGE: Final = (
    base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
)
ADA: Final = DemoUser("user_ada", "Ada Example", "ada@demo.example", "org_demo", "owner")
BOB: Final = DemoUser("user_bob", "<b>Bob</b>", "bob@demo.example")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Form(HTMLParser):
    """The fields of the one form in a page, and the values of its buttons."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self.buttons: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: text or "" for name, text in attrs}
        if tag == "form":
            self.action = named["action"]
        elif tag == "input":
            self.fields[named["name"]] = named["value"]
        elif tag == "button":
            self.buttons.append(named["value"])


@contextlib.contextmanager
def running_provider(directory: Path, clock: Clock) -> Iterator[tuple[Companion, httpx2.Client]]:
    """A companion for one client with a secret and for two users, and an HTTP client at its
    address.
    """
    companion = Companion(
        directory,
        users=[ADA, BOB],
        audience=AUDIENCE,
        client_id=CLIENT_ID,
        client_secret=Secret(CLIENT_SECRET),
        clock=clock,
    )
    with companion, httpx2.Client(base_url=companion.http_url, verify=False) as http:
        yield companion, http


def asking(**changes: str | None) -> dict[str, str]:
    """The parameters of a good authorization request, but for what is asked otherwise."""
    parameters = {
        "client_id": CLIENT_ID,
        "redirect_uri": CALLBACK,
        "response_type": "code",
        "scope": "openid profile email projects:read",
        "state": "st&te",
        "nonce": "n-1",
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
        **changes,
    }
    return {name: text for name, text in parameters.items() if text is not None}


def location(response: httpx2.Response) -> tuple[str, dict[str, list[str]]]:
    """Where a redirect leads, and the query it carries there."""
    assert response.status_code == 303
    address, _, query = response.headers["location"].partition("?")
    return address, parse_qs(query)


def choose(http: httpx2.Client, user: DemoUser = ADA, **changes: str | None) -> str:
    """Sign ``user`` in by the page; return the code."""
    form = Form(http.get("/authorize", params=asking(**changes)).text)
    _, query = location(http.post(form.action, data={**form.fields, "user": user.sub}))
    return query["code"][0]


def redeem(http: httpx2.Client, code: str, /, **changes: str) -> httpx2.Response:
    parameters = {
        "grant_type": "authorization_code",
        "client_id": CLIENT_ID,
        "code": code,
        "redirect_uri": CALLBACK,
        "code_verifier": VERIFIER,
        **changes,
    }
    return http.post("/token", data=parameters)


def sign_in(http: httpx2.Client, user: DemoUser = ADA, **changes: str | None) -> dict[str, Any]:
    """Sign ``user`` in and return the token endpoint's answer."""
    response = redeem(http, choose(http, user, **changes))
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    return answer


def refresh(http: httpx2.Client, refresh_token: str, /, **changes: str) -> httpx2.Response:
    parameters = {
        "grant_type": "refresh_token",
        "client_id": CLIENT_ID,
        "refresh_token": refresh_token,
        **changes,
    }
    return http.post("/token", data=parameters)


def verified(http: httpx2.Client, token: str) -> jwt.Token:
    """The token, once its signature has been checked with the published keys."""
    keys = KeySet.import_key_set(http.get("/jwks").json())
    return jwt.decode(token, keys, algorithms=["RS256"])


def userinfo(http: httpx2.Client, token: str) -> httpx2.Response:
    return http.get("/userinfo", headers={"Authorization": f"Bearer {token}"})


def basic(secret: str) -> str:
    """An Authorization header that proves the client, in the way of RFC 6749 section 2.3.1."""
    quoted = httpx2.QueryParams({"s": secret})
    return "Basic " + base64.b64encode(f"{CLIENT_ID}:{str(quoted)[2:]}".encode()).decode()
