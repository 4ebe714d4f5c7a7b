"""The scripts that the guides for identity providers print, run by Node.js on what the providers
hand to them.
"""

import json
import subprocess
from typing import Any, Final

import pytest

from tests.support.documentation import block_of
from tests.support.required import node

PROJECT, ORGANIZATION = "PROJECT_ID", "201982826478953724"
ACTIVE, INACTIVE = 1, 2
OF_ZITADEL: Final = """
const claims = {};
const ctx = { v1: { user: { grants: given }, getUser: () => ({ resourceOwner: "201982826478953724" }) } };
orgRole(ctx, { v1: { claims: { setClaim: (name, value) => { claims[name] = value; } } } });
console.log(JSON.stringify(claims));
"""
OF_LOGTO: Final = "getCustomJwtClaims({ context: { user: given } }).then((it) => console.log(JSON.stringify(it)));"


def claims_of(script: str, calls: str, given: object) -> dict[str, Any]:
    """The claims that a script sets, called with what the provider gives."""
    program = f"const given = {json.dumps(given)};\n{script}\n{calls}"
    ran = subprocess.run(
        [node(), "-e", program], capture_output=True, text=True, check=True, timeout=60
    )
    claims: dict[str, Any] = json.loads(ran.stdout)
    return claims


def zitadel_claims(grants: object) -> dict[str, Any]:
    script = block_of("how-to/identity-provider-zitadel.md", "function orgRole")
    return claims_of(script, OF_ZITADEL, grants)


def logto_claims(organizations: list[str], roles: list[tuple[str, str]]) -> dict[str, Any]:
    script = block_of("how-to/identity-provider-logto.md", "const getCustomJwtClaims")
    user = {
        "organizations": [{"id": organization} for organization in organizations],
        "organizationRoles": [
            {"organizationId": organization, "roleName": role} for organization, role in roles
        ],
    }
    return claims_of(script, OF_LOGTO, user)


def grant(
    role: str, *, project: str = PROJECT, state: int = ACTIVE, organization: str = ORGANIZATION
) -> dict[str, Any]:
    """A user's grant, as a ZITADEL action sees it."""
    return {
        "projectId": project,
        "state": state,
        "userGrantResourceOwner": organization,
        "roles": [role],
    }


def test_zitadel_action_takes_the_roles_of_the_project_in_the_users_organization() -> None:
    assert zitadel_claims({"grants": [grant("member"), grant("admin")]}) == {
        "org_role": ["member", "admin"]
    }


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(grant("owner", project="69234237810729234"), id="another-project"),
        pytest.param(grant("owner", state=INACTIVE), id="inactive"),
        pytest.param(grant("owner", organization="301982826478953724"), id="another-organization"),
    ],
)
def test_zitadel_action_takes_no_role_of_another_grant(other: object) -> None:
    assert zitadel_claims({"grants": [other]}) == {}
    assert zitadel_claims({"grants": [grant("member"), other]}) == {"org_role": ["member"]}


@pytest.mark.parametrize(
    "grants", [None, {"grants": None}, {"grants": [{**grant("owner"), "roles": None}]}]
)
def test_zitadel_action_sets_no_role_where_it_is_given_none(grants: object) -> None:
    assert zitadel_claims(grants) == {}


def test_logto_script_takes_the_roles_of_the_only_organization() -> None:
    roles = [("acme", "admin"), ("acme", "member")]
    assert logto_claims(["acme"], roles) == {"org_role": ["admin", "member"]}
    assert logto_claims(["acme"], []) == {}


def test_logto_script_takes_no_role_of_a_user_of_several_organizations() -> None:
    """The token may be for the organization in which the user has no role."""
    assert logto_claims(["acme", "globex"], [("acme", "owner")]) == {}
