"""Why somebody may not do something, in words."""

from tenantry.http.access import Credential
from tenantry.http.dashboard.words import refusal_of
from tests.support.principals import make_principal
from tests.support.routes import scopes_needed


def test_whatever_a_page_needs_has_words() -> None:
    needed = scopes_needed(Credential.SESSION)
    assert "api-keys:read" in needed
    for scope in needed:
        said = refusal_of(make_principal(), ("openid",), scope)
        assert said.startswith("Your role, member, does not let you ")
        assert scope not in said


def test_token_of_few_scopes_is_the_reason_whatever_the_role_is() -> None:
    said = refusal_of(make_principal("projects:read"), ("openid", "projects:read"), "api-keys:read")
    assert said == "Your identity provider signed you in for projects:read only. That does not let you see API keys."
