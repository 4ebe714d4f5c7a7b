"""Keys, tokens and members of the plugin."""

from datetime import timedelta

import pytest

from tenantry_devkit.testing import Key, RefusedError, SuiteTenantry
from tests.support.service import refusal

WHOAMI = "/api/v1/auth/whoami"
PROJECTS = "/api/v1/projects"


def test_key_is_limited_to_its_scopes(tenantry: SuiteTenantry) -> None:
    client = tenantry.client(tenantry.tenant().key("projects:read"))
    assert client.get(PROJECTS).status_code == 200
    assert refusal(client.post(PROJECTS, json={"name": "One"})) == (403, "insufficient_scope")


def test_a_key_without_scopes_is_an_owner_key(tenantry: SuiteTenantry) -> None:
    assert tenantry.tenant().key().record["accessLevel"] == "OWNER"


def test_a_key_in_test_mode(tenantry: SuiteTenantry) -> None:
    key = tenantry.tenant().key("projects:read", mode="test")
    assert key.secret.startswith("svc_test_")


def test_a_revoked_key_is_refused_at_the_next_request(tenantry: SuiteTenantry) -> None:
    key = tenantry.tenant().key("projects:read")
    client = tenantry.client(key)
    assert client.get(PROJECTS).status_code == 200
    key.revoke()
    assert refusal(client.get(PROJECTS)) == (401, "api_key_revoked")


def test_a_rotated_key_has_a_successor(tenantry: SuiteTenantry) -> None:
    key = tenantry.tenant().key("projects:read")
    fresh = key.rotate()
    assert refusal(tenantry.client(key).get(PROJECTS)) == (401, "api_key_revoked")
    assert tenantry.client(fresh).get(PROJECTS).status_code == 200


def test_rotated_key_works_for_the_overlap(tenantry: SuiteTenantry) -> None:
    key = tenantry.tenant().key("projects:read")
    key.rotate(overlap_seconds=3600)
    assert tenantry.client(key).get(PROJECTS).status_code == 200


def test_a_key_that_has_expired(tenantry: SuiteTenantry) -> None:
    key = tenantry.tenant().key("projects:read", expires_in=timedelta(days=1))
    client = tenantry.client(key)
    assert client.get(PROJECTS).status_code == 200
    key.expire()
    assert refusal(client.get(PROJECTS)) == (401, "api_key_expired")


def test_rejected_request_raises_with_the_response(tenantry: SuiteTenantry) -> None:
    with pytest.raises(RefusedError, match="POST /api/v1/api-keys: 422") as refused:
        tenantry.tenant().key("no scope")
    assert refusal(refused.value.response) == (422, "validation_failed")


def test_a_members_token_may_do_what_members_may(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    known = tenantry.client(tenantry.token("mia", tenant)).get(WHOAMI).json()
    assert (known["id"], known["orgId"], known["scopes"]) == (
        "mia",
        tenant.id,
        ["projects:*", "tenants:read", "billing:read"],
    )


def test_a_token_of_an_owner(tenantry: SuiteTenantry) -> None:
    token = tenantry.token("olga", tenantry.tenant(), role="owner")
    assert tenantry.client(token).get(WHOAMI).json()["accessLevel"] == "OWNER"


def test_a_tokens_scope_narrows_it(tenantry: SuiteTenantry) -> None:
    token = tenantry.token("olga", tenantry.tenant(), role="owner", scope="openid projects:read")
    client = tenantry.client(token)
    assert client.get(PROJECTS).status_code == 200
    assert refusal(client.post(PROJECTS, json={"name": "One"})) == (403, "insufficient_scope")


def test_a_token_that_has_expired(tenantry: SuiteTenantry) -> None:
    token = tenantry.token("mia", tenantry.tenant(), expires_in=-60)
    assert refusal(tenantry.client(token).get(WHOAMI)) == (401, "token_expired")


def test_token_without_an_organization(tenantry: SuiteTenantry) -> None:
    assert refusal(tenantry.client(tenantry.token("noah")).get(PROJECTS)) == (
        403,
        "no_organization",
    )


def test_token_has_additional_claims(tenantry: SuiteTenantry) -> None:
    token = tenantry.token("mia", tenantry.tenant(), claims={"aud": "another-api"})
    assert refusal(tenantry.client(token).get(WHOAMI)) == (401, "invalid_credential")


def test_a_user_with_an_address_can_make_a_tenant(tenantry: SuiteTenantry) -> None:
    client = tenantry.client(tenantry.token("nora", email="nora@new.example"))
    made = client.post("/api/v1/tenants", json={"name": "New"})
    assert made.status_code == 201, made.text
    assert made.json()["ownerId"] == "nora"


def test_identity_provider_knows_users_of_tokens(tenantry: SuiteTenantry) -> None:
    token = tenantry.token("uma", tenantry.tenant(), email="uma@acme.example")
    answer = tenantry.client(token).get(f"{tenantry.environment['OIDC_ISSUER']}/userinfo")
    assert (answer.json()["sub"], answer.json()["email"]) == ("uma", "uma@acme.example")


def test_a_member_on_record_gets_another_role_and_is_removed(tenantry: SuiteTenantry) -> None:
    member = tenantry.tenant().member("mia", "admin")
    client = tenantry.client(member.token())
    assert client.get(WHOAMI).json()["scopes"] == ["*:*"]
    member.change("member")
    assert client.get(WHOAMI).json()["scopes"] == ["projects:*", "tenants:read", "billing:read"]
    member.remove()
    assert refusal(client.get(WHOAMI)) == (403, "no_organization")


def test_reports_mask_secrets(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    key = tenant.key()
    shown = repr(
        [
            tenantry,
            tenantry.service,
            tenant,
            key,
            key.secret,
            key.headers,
            key.environment,
            tenantry.environment,
            tenant.token(),
            tenant.member("mia"),
            vars(tenantry.service),
        ]
    )
    secrets = [
        key.secret,
        tenant.token().split(".")[0],
        *(
            tenantry.environment[name]
            for name in ("API_KEY_PEPPER", "OPERATOR_TOKEN", "PROVIDER_WEBHOOK_SECRET")
        ),
    ]
    assert [secret for secret in secrets if secret in shown] == []
    assert "TENANTRY_API_KEY" in shown


def test_credential_is_a_string(tenantry: SuiteTenantry) -> None:
    key = tenantry.tenant().key()
    assert isinstance(key, Key)
    assert f"{key.secret}" == "".join(key.secret)
    assert key.headers["Authorization"] == f"Bearer {key.secret}"
    assert dict(key.environment)["TENANTRY_API_KEY"] == key.secret
