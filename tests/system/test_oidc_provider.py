"""Tokens of a real OpenID provider, verified with the keys that it publishes."""

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest

from tenantry.common.clock import Clock, system_clock
from tenantry.domain.errors import InvalidCredentialError, TokenExpiredError
from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import ALGORITHMS
from tenantry.integrations.oidc.tokens import TokenVerifier
from tests.support.node_provider import AUDIENCE, NodeProvider, node_provider
from tests.support.patience import patient_keys


@pytest.fixture(scope="module")
async def provider() -> AsyncIterator[NodeProvider]:
    async with node_provider("ann", "bob") as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False) as made:
        yield made


def _verifier(
    provider: NodeProvider,
    client: httpx2.AsyncClient,
    *,
    audience: str = AUDIENCE,
    clock: Clock = system_clock,
) -> TokenVerifier:
    config = OidcConfig(Issuers(provider.issuer), (audience,), client_id="dashboard")
    return TokenVerifier(config, patient_keys(config, client), clock=clock)


@pytest.mark.parametrize("alg", ALGORITHMS)
async def test_its_access_tokens_are_accepted(
    provider: NodeProvider, client: httpx2.AsyncClient, alg: str
) -> None:
    token = await provider.token("ann", alg=alg)
    claims = await _verifier(provider, client).verify(token)
    assert (claims.issuer, claims.subject) == (provider.issuer, "ann")


async def test_organization_role_scopes_and_address_are_read_from_them(
    provider: NodeProvider, client: httpx2.AsyncClient
) -> None:
    token = await provider.token(
        "bob",
        scope="projects:read billing:read",
        org_id="acme",
        org_role="admin",
        email="bob@acme.example",
        email_verified=True,
    )
    claims = await _verifier(provider, client).verify(token)
    assert (claims.org_id, claims.role, claims.email) == ("acme", "admin", "bob@acme.example")
    assert set(claims.scopes) == {"projects:read", "billing:read"}


async def test_they_expire(provider: NodeProvider, client: httpx2.AsyncClient) -> None:
    token = await provider.token("ann")
    later = system_clock() + timedelta(hours=2)
    with pytest.raises(TokenExpiredError):
        await _verifier(provider, client, clock=lambda: later).verify(token)


async def test_a_token_for_another_audience_is_refused(
    provider: NodeProvider, client: httpx2.AsyncClient
) -> None:
    with pytest.raises(InvalidCredentialError):
        await _verifier(provider, client, audience="other-api").verify(await provider.token("ann"))


async def test_a_token_of_another_provider_is_refused(
    provider: NodeProvider, client: httpx2.AsyncClient
) -> None:
    async with node_provider("ann") as other:
        token = await other.token("ann")
    with pytest.raises(InvalidCredentialError):
        await _verifier(provider, client).verify(token)
