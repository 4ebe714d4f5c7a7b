"""The verified e-mail address from the provider's userinfo endpoint."""

import json
from collections.abc import AsyncIterator

import httpx2
import pytest

from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.sign_in import UserInfo
from tests.support.issuer import AUDIENCE, DISCOVERY, JWKS, USERINFO, Answer, Issuer, running_issuer
from tests.support.patience import patient_keys

ANN = {"sub": "user_1", "email": "ann@acme.example", "email_verified": True}


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(verify=False) as made:
        yield made


@pytest.fixture
async def userinfo(issuer: Issuer, client: httpx2.AsyncClient) -> UserInfo:
    return await _userinfo(issuer, client)


async def _userinfo(issuer: Issuer, client: httpx2.AsyncClient) -> UserInfo:
    config = OidcConfig(Issuers(issuer.url), (AUDIENCE,))
    keys = patient_keys(config, client)
    await keys.refresh()
    return UserInfo(config, keys, client)


def _answer(issuer: Issuer, document: object) -> None:
    issuer.answers[USERINFO] = Answer(200, json.dumps(document).encode())


async def test_the_verified_address_of_the_subject_is_found(
    issuer: Issuer, userinfo: UserInfo
) -> None:
    _answer(issuer, ANN)
    assert await userinfo.userinfo_email("secret-token", "user_1") == "ann@acme.example"


async def test_the_token_goes_in_the_authorization_header(
    issuer: Issuer, userinfo: UserInfo
) -> None:
    _answer(issuer, ANN)
    await userinfo.userinfo_email("secret-token", "user_1")
    assert issuer.authorization == "Bearer secret-token"


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({**ANN, "sub": "user_2"}, id="another subject"),
        pytest.param({"email": "ann@acme.example", "email_verified": True}, id="no subject"),
        pytest.param({**ANN, "email_verified": False}, id="not verified"),
        pytest.param({**ANN, "email_verified": "TRUE"}, id="verified in other words"),
        pytest.param({"sub": "user_1"}, id="no address"),
        pytest.param({**ANN, "email": 7}, id="address of the wrong type"),
        pytest.param([ANN], id="not an object"),
    ],
)
async def test_other_response_has_no_address(
    issuer: Issuer, userinfo: UserInfo, document: object
) -> None:
    _answer(issuer, document)
    assert await userinfo.userinfo_email("secret-token", "user_1") is None


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer(401, b""), id="refused"),
        pytest.param(Answer(302, b"", {"Location": "/elsewhere"}), id="redirect"),
        pytest.param(Answer(200, b"eyJhbGciOiJub25lIn0.e30."), id="a JWT"),
        pytest.param(Answer(200, b"[" * 100_000), id="deep nesting"),
    ],
)
async def test_unreadable_response_has_no_address(
    issuer: Issuer, userinfo: UserInfo, answer: Answer
) -> None:
    issuer.answers[USERINFO] = answer
    assert await userinfo.userinfo_email("secret-token", "user_1") is None


async def test_an_unreachable_provider_yields_no_address(
    issuer: Issuer, userinfo: UserInfo, caplog: pytest.LogCaptureFixture
) -> None:
    await issuer.stop()
    assert await userinfo.userinfo_email("secret-token", "user_1") is None
    assert "secret-token" not in caplog.text


async def test_a_provider_without_the_endpoint_is_no_address(
    issuer: Issuer, client: httpx2.AsyncClient
) -> None:
    document = {"issuer": issuer.url, "jwks_uri": issuer.url + JWKS}
    issuer.answers[DISCOVERY] = Answer(200, json.dumps(document).encode())
    userinfo = await _userinfo(issuer, client)
    assert await userinfo.userinfo_email("secret-token", "user_1") is None


async def test_a_provider_that_was_never_reached_is_no_address(
    issuer: Issuer, client: httpx2.AsyncClient
) -> None:
    await issuer.stop()
    userinfo = await _userinfo(issuer, client)
    assert await userinfo.userinfo_email("secret-token", "user_1") is None


async def test_the_token_is_not_sent_to_an_insecure_address(
    issuer: Issuer, client: httpx2.AsyncClient
) -> None:
    document = {
        "issuer": issuer.url,
        "jwks_uri": issuer.url + JWKS,
        "userinfo_endpoint": "http://issuer.example/userinfo",
    }
    issuer.answers[DISCOVERY] = Answer(200, json.dumps(document).encode())
    userinfo = await _userinfo(issuer, client)
    assert await userinfo.userinfo_email("secret-token", "user_1") is None
