"""The reasons for missing permissions, as text."""

from tenantry.api.guards import Credential
from tenantry.dashboard.labels import denial_text
from tenantry.domain.roles import ADMIN, MEMBER
from tests.support.routes import scopes_needed


def test_every_scope_of_a_page_has_a_text() -> None:
    needed = scopes_needed(Credential.SESSION)
    assert "api-keys:read" in needed
    for scope in needed:
        said = denial_text(MEMBER, ("openid",), scope, None)
        assert said.startswith("Your role, member, can't ")
        assert scope not in said


def test_token_scopes_are_named_if_the_role_would_suffice() -> None:
    said = denial_text(ADMIN, ("openid", "projects:read"), "api-keys:read", None)
    assert (
        said
        == "Your identity provider restricted your sign-in to projects:read. You can't see API keys."
    )


def test_role_is_named_if_it_does_not_suffice() -> None:
    said = denial_text(ADMIN, ("openid", "billing:read"), "billing:read", "replay the ledger")
    assert said == "Your role, admin, can't replay the ledger. Ask an owner of the organization."
