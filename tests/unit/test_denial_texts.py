"""The reasons for missing permissions, as text."""

from tenantry.api.guards import Credential
from tenantry.dashboard.labels import denial_text
from tenantry.domain.access import Role
from tests.support.routes import scopes_needed


def test_whatever_a_page_needs_has_words() -> None:
    needed = scopes_needed(Credential.SESSION)
    assert "api-keys:read" in needed
    for scope in needed:
        said = denial_text(Role.MEMBER, ("openid",), scope, None)
        assert said.startswith("Your role, member, can't ")
        assert scope not in said


def test_token_of_few_scopes_is_the_reason_where_the_role_would_do() -> None:
    said = denial_text(Role.ADMIN, ("openid", "projects:read"), "api-keys:read", None)
    assert said == "Your identity provider restricted your sign-in to projects:read. You can't see API keys."


def test_role_is_the_reason_where_it_would_not_do_whatever_the_token_says() -> None:
    said = denial_text(Role.ADMIN, ("openid", "billing:read"), "billing:read", "replay the ledger")
    assert said == "Your role, admin, can't replay the ledger. Ask an owner of the organization."
