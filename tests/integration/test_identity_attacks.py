"""Tokens that the verifier must reject, each for the one reason that it was forged for."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from tenantry.domain.errors import InvalidCredentialError
from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.tokens import TokenVerifier
from tests.support.forgeries import ATTACKER, ATTACKS, PUBLISHED, remote
from tests.support.issuer import AUDIENCE, CLIENT_ID, NOW, Issuer, running_issuer
from tests.support.patience import patient_keys


@pytest.fixture(scope="module")
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer(*PUBLISHED) as running:
        yield running


@pytest.fixture(scope="module")
async def verifier(issuer: Issuer) -> AsyncIterator[TokenVerifier]:
    config = OidcConfig(Issuers(issuer.url), (AUDIENCE,), client_id=CLIENT_ID)
    async with httpx2.AsyncClient(verify=False) as client:
        keys = patient_keys(config, client, monotonic=lambda: 0.0)
        await keys.refresh()
        yield TokenVerifier(config, keys, clock=lambda: NOW)
        await keys.aclose()


async def _reason(verifier: TokenVerifier, token: str) -> str:
    """Why the token is rejected: for the operator, while the answer reveals nothing."""
    rejection = await _rejection(verifier, token)
    if rejection is None:
        return "it is accepted"
    assert rejection.detail == "The bearer token is not valid."
    assert rejection.token_fault is not None
    return rejection.token_fault.reason


async def _rejection(verifier: TokenVerifier, token: str) -> InvalidCredentialError | None:
    try:
        await verifier.verify(token)
    except InvalidCredentialError as error:
        return error
    return None


async def test_token_is_rejected_for_the_right_reason(
    issuer: Issuer, verifier: TokenVerifier
) -> None:
    for reason, forgeries in ATTACKS.items():
        for name, forge in forgeries.items():
            assert (await _reason(verifier, forge(issuer))).startswith(reason), (reason, name)


async def test_the_audience_of_the_client_alone_is_an_id_token_even_where_it_is_ours(
    issuer: Issuer,
) -> None:
    config = OidcConfig(Issuers(issuer.url), (CLIENT_ID,), client_id=CLIENT_ID)
    async with httpx2.AsyncClient(verify=False) as client:
        keys = patient_keys(config, client, monotonic=lambda: 0.0)
        verifier = TokenVerifier(config, keys, clock=lambda: NOW)
        reason = await _reason(verifier, issuer.mint(claims={"aud": [CLIENT_ID]}))
    assert "only the client" in reason


async def test_no_key_is_fetched_from_a_url_in_a_token(
    issuer: Issuer, verifier: TokenVerifier
) -> None:
    async with running_issuer(ATTACKER) as attacker:
        for name, forge in remote(attacker).items():
            with pytest.raises(InvalidCredentialError):
                await verifier.verify(forge(issuer))
            assert not attacker.connections, name
