"""The documented tokens of identity providers (tests/contract/providers), and the pages that print
their settings.
"""

import functools
import io
import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec
from dotenv import dotenv_values
from joserfc.jwk import JWKRegistry, Key

from tests.support.documentation import ROOT, blocks
from tests.support.issuer import SigningKey

FOLDER: Final = ROOT / "tests" / "contract" / "providers"
GUIDES: Final = ROOT / "docs" / "how-to"
NAMES: Final = sorted(path.stem for path in FOLDER.glob("*.json"))
_KEY_TYPES: Final[Mapping[str, tuple[str, str | int]]] = {
    "RS256": ("RSA", 2048),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "EdDSA": ("OKP", "Ed25519"),
    "HS256": ("oct", 256),
}
_SETTINGS_NOTE: Final = re.compile(
    r"excerpt: settings(?: for (?P<label>[^;]+))?; the values are examples"
)
_TOKEN_NOTE: Final = re.compile(r"excerpt: claims of the token \"(?P<name>[^\"]+)\"")


class ExpectedClaims(msgspec.Struct, forbid_unknown_fields=True):
    """What the verifier reads from an accepted token."""

    org: str | None
    role: str | None
    scopes: list[str]
    email: str | None


class Rejection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The check that a token fails, and the reason that `explain-token` shows."""

    check: str
    reason: str


class DocumentedToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token as the provider's documentation describes it.

    With ``like`` it is that token of the same provider, with other ``claims`` and ``without`` some.
    ``groups`` adds a claim of so many group ids. ``settings`` labels the settings on the page.
    ``text`` is a token that is no JWT. ``whoami`` is the service's answer; before that,
    ``owner_of`` makes the user the owner of a tenant.
    """

    name: str
    settings: str = ""
    like: str = ""
    header: dict[str, Any] = {}
    claims: dict[str, Any] = {}
    without: list[str] = []
    groups: int = 0
    text: str = ""
    expected: ExpectedClaims | None = None
    rejected: Rejection | None = None
    owner_of: str = ""
    whoami: dict[str, Any] = {}

    def encode(self, **claims: str) -> str:
        """Sign it; ``claims`` replace those of the same name."""
        if self.text:
            return self.text
        body = {**self.claims, **claims}
        return self.key.sign(json.dumps(self.header).encode(), json.dumps(body).encode())

    @property
    def key(self) -> SigningKey:
        """The provider's key for the token."""
        alg = self.header["alg"]
        return SigningKey(alg, self.header.get("kid", ""), _private_key(alg))


class Provider(msgspec.Struct, forbid_unknown_fields=True):
    """An identity provider: its documentation, its discovery documents by address, and its
    tokens.
    """

    provider: str
    documentation: list[str]
    discovery: dict[str, dict[str, str]]
    tokens: list[DocumentedToken]

    @property
    def keys(self) -> list[SigningKey]:
        """The keys that it publishes: never a secret for HMAC."""
        found = {token.header["kid"]: token.key for token in self.tokens if "kid" in token.header}
        return list(found.values())

    def discovery_path(self, issuer: str) -> str:
        """The path of the discovery document that names this issuer."""
        (address,) = [
            address for address, document in self.discovery.items() if document["issuer"] == issuer
        ]
        return urlsplit(address).path

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """Answer as its documented addresses do: discovery documents and keys."""
        key_set = {"keys": [key.jwk() for key in self.keys]}
        documents: dict[str, object] = {**self.discovery}
        for document in self.discovery.values():
            documents[document["jwks_uri"]] = key_set
        address = str(request.url)
        if address not in documents:
            return httpx2.Response(404)
        body = json.dumps(documents[address]).encode()
        return httpx2.Response(200, stream=httpx2.ByteStream(body))


@functools.cache
def provider(name: str) -> Provider:
    """Read the file of a provider."""
    read = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Provider)
    by_name = {token.name: token for token in read.tokens}
    for token in read.tokens:
        if token.like:
            _complete(token, by_name[token.like])
        if token.groups:
            token.claims["groups"] = [str(uuid.UUID(int=number)) for number in range(token.groups)]
    return read


def _complete(token: DocumentedToken, original: DocumentedToken) -> None:
    """Add what a token has in common with another one."""
    common = {
        claim: value for claim, value in original.claims.items() if claim not in token.without
    }
    token.header = original.header
    token.claims = {**common, **token.claims}


def page_of(name: str) -> Path:
    """The guide for a provider."""
    return GUIDES / f"identity-provider-{name}.md"


_PLACEHOLDER: Final = "..."
_CLIENT_SECRET: Final = "client-secret-of-the-tests"  # for the tests alone


@functools.cache
def settings_of(name: str) -> dict[str, dict[str, str]]:
    """The settings that a provider's page prints, by their label."""
    found: dict[str, dict[str, str]] = {}
    for block in blocks(page_of(name)):
        note = _SETTINGS_NOTE.fullmatch(block.note)
        if note is not None:
            found[note["label"] or ""] = _as_environment(block.text)
    return found


def _as_environment(text: str) -> dict[str, str]:
    """Read lines as the service reads its ``.env`` file, with a secret in place of a
    placeholder.
    """
    values = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {
        variable: _CLIENT_SECRET if value == _PLACEHOLDER else value or ""
        for variable, value in values.items()
    }


def printed_claims(name: str) -> dict[str, dict[str, Any]]:
    """The claims that a provider's page prints, by the token's name."""
    found: dict[str, dict[str, Any]] = {}
    for block in blocks(page_of(name)):
        note = _TOKEN_NOTE.fullmatch(block.note)
        if note is not None:
            found[note["name"]] = json.loads(block.text)
    return found


@functools.cache
def _private_key(alg: str) -> Key:
    return JWKRegistry.generate_key(*_KEY_TYPES[alg])
