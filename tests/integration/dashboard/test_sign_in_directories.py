"""Signing in where the issuer depends on the user's directory, and where the audience of access
tokens varies.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from tenantry.common.secret import Secret
from tenantry.domain.issuers import Issuers
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.sign_in import (
    PendingSignIn,
    SignedInUser,
    SignIn,
    SignInFailedError,
)
from tests.integration.dashboard.signing_in import CALLBACK, TOKEN, USER, describe
from tests.support.app import BASE_URL
from tests.support.issuer import CLIENT_ID, DISCOVERY, NOW, Answer, Issuer, running_issuer
from tests.support.patience import patient_keys

GUID = "00001111-aaaa-2222-bbbb-3333cccc4444"
URI = "https://api.example"


class ScriptedSignIn(NamedTuple):
    """A sign-in at a provider whose answers the test gives."""

    issuer: Issuer
    sign_in: SignIn

    async def begin(self) -> tuple[dict[str, list[str]], PendingSignIn]:
        """What the browser is sent to the provider with, and what is kept."""
        url, sign_in_state = await self.sign_in.begin()
        return parse_qs(urlsplit(url).query), sign_in_state

    async def finish(self, claims: dict[str, Any], **parameters: str) -> SignedInUser:
        """Return with a code for an ID token that says this."""
        _, sign_in_state = await self.begin()
        said = {"sub": USER, "aud": CLIENT_ID, "nonce": sign_in_state.nonce, **claims}
        id_token = self.issuer.mint(header={"typ": "JWT"}, claims=said)
        tokens = msgspec.json.encode({"access_token": "opaque", "id_token": id_token})
        self.issuer.answers[TOKEN] = Answer(200, tokens, {"content-type": "application/json"})
        return await self.sign_in.finish(
            sign_in_state, {"code": "a-code", "state": sign_in_state.state, **parameters}
        )

    def issuer_of(self, directory: str) -> str:
        return f"{self.issuer.url}/{directory}/v2.0"


@asynccontextmanager
async def signing_in(
    directories: tuple[str, ...] = (), **config: Any
) -> AsyncIterator[ScriptedSignIn]:
    async with running_issuer() as issuer, new_http_client() as http:
        issuers = Issuers(issuer.url + ("/{tenantid}/v2.0" if directories else ""), directories)
        describe(issuer, issuer=issuers.name)
        if directories:
            issuer.answers["/organizations/v2.0" + DISCOVERY] = issuer.answers.pop(DISCOVERY)
        settings = OidcConfig(issuers, **{"audiences": (GUID,), "client_id": CLIENT_ID, **config})
        keys = patient_keys(settings, http)
        sign_in = SignIn(
            settings,
            keys,
            http,
            client_id=CLIENT_ID,
            client_secret=Secret("secret"),
            redirect_uri=BASE_URL + CALLBACK,
            clock=lambda: NOW,
        )
        yield ScriptedSignIn(issuer, sign_in)
        await keys.aclose()


@pytest.mark.parametrize("names_issuer", [True, False])
async def test_user_of_a_listed_directory_signs_in(*, names_issuer: bool) -> None:
    async with signing_in(("a-1", "b-2")) as scripted:
        issuer = scripted.issuer_of("b-2")
        parameters = {"iss": issuer} if names_issuer else {}
        person = await scripted.finish({"iss": issuer, "tid": "b-2"}, **parameters)
    assert person.claims.user == (issuer, USER)


async def test_user_of_another_directory_does_not_sign_in() -> None:
    async with signing_in(("a-1",)) as scripted:
        with pytest.raises(SignInFailedError, match="the directory is not accepted"):
            await scripted.finish({"iss": scripted.issuer_of("b-2"), "tid": "b-2"})
        with pytest.raises(SignInFailedError, match="wrong issuer"):
            await scripted.finish({"iss": scripted.issuer_of("b-2"), "tid": "a-1"})


async def test_response_of_another_issuer_than_the_id_token_is_rejected() -> None:
    async with signing_in(("a-1", "b-2")) as scripted:
        claims = {"iss": scripted.issuer_of("a-1"), "tid": "a-1"}
        for issuer in (
            scripted.issuer_of("b-2"),
            scripted.issuer_of("c-3"),
            "https://evil.example",
            "",
        ):
            with pytest.raises(SignInFailedError, match="not the identity provider's"):
                await scripted.finish(claims, iss=issuer)


@pytest.mark.parametrize(
    ("config", "audience", "resource"),
    [
        ({"audiences": (URI, GUID)}, [URI], [URI]),
        ({"audiences": ("api://tenantry",)}, ["api://tenantry"], ["api://tenantry"]),
        ({"audiences": (GUID, URI)}, [GUID], None),
        ({"audiences": (CLIENT_ID, URI), "audience_claim": "client_id"}, None, None),
    ],
    ids=["URI", "URI of another scheme", "plain id", "client"],
)
async def test_access_token_is_asked_for_the_first_audience(
    config: dict[str, Any], audience: list[str] | None, resource: list[str] | None
) -> None:
    async with signing_in(**config) as scripted:
        asked, _ = await scripted.begin()
    assert (asked.get("audience"), asked.get("resource")) == (audience, resource)


async def test_id_token_names_the_client_whichever_claim_holds_the_audience() -> None:
    async with signing_in(audiences=("spa",), audience_claim="azp") as scripted:
        person = await scripted.finish(
            {"iss": scripted.issuer.url, "email": "a@b.example", "email_verified": "true"}
        )
        assert person.claims.email == "a@b.example"
        with pytest.raises(SignInFailedError, match="wrong audience"):
            await scripted.finish({"iss": scripted.issuer.url, "aud": "spa", "azp": CLIENT_ID})
