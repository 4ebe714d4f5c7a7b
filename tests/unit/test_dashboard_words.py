"""The reasons for missing permissions, as text."""

from tenantry.api.guards import Credential
from tenantry.dashboard.labels import refusal_of
from tenantry.domain.access import Role
from tests.support.routes import scopes_needed


def test_whatever_a_page_needs_has_words() -> None:
    needed = scopes_needed(Credential.SESSION)
    assert "api-keys:read" in needed
    for scope in needed:
        said = refusal_of(Role.MEMBER, ("openid",), scope, None)
        assert said.startswith("Your role, member, does not let you ")
        assert scope not in said


def test_token_of_few_scopes_is_the_reason_where_the_role_would_do() -> None:
    said = refusal_of(Role.ADMIN, ("openid", "projects:read"), "api-keys:read", None)
    assert said == "Your identity provider signed you in for projects:read only. That does not let you see API keys."


def test_role_is_the_reason_where_it_would_not_do_whatever_the_token_says() -> None:
    said = refusal_of(Role.ADMIN, ("openid", "billing:read"), "billing:read", "replay the ledger")
    assert said == "Your role, admin, does not let you replay the ledger. Only an owner can."
