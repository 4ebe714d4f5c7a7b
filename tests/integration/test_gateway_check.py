"""The authorization check for gateways."""

from tests.support.cases import cases
from tests.support.gateways import EXTERNAL_ID, FEATURES, IDENTITY
from tests.support.service import VERIFY, Service, refusal

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "REPORT")


@cases("method", METHODS)
async def test_any_method_is_answered_with_the_callers_identity(
    service: Service, method: str
) -> None:
    org = await service.organization()
    answer = await org.owner.call(method, f"{VERIFY}projects:read")
    assert (answer.status_code, answer.content) == (200, b"")
    assert {
        name: answer.headers[name] for name in answer.headers if name.startswith(("x-", "X-"))
    } == {
        "x-tenant-id": org.id,
        "x-principal-id": org.key.id,
        "x-principal-kind": "api_key",
        "x-mode": "live",
        "x-plan": "free",
        "x-subscription-status": "none",
        "x-access": "none",
        "x-effective-plan": "free",
        "x-request-id": answer.headers["x-request-id"],
        "x-content-type-options": "nosniff",
    }


async def test_user_is_named_by_the_subject_of_the_token(service: Service) -> None:
    org = await service.organization()
    answer = await service.user("auth0|1:2", org=org.id).get(f"{VERIFY}projects:write")
    assert (answer.headers["x-principal-id"], answer.headers["x-principal-kind"]) == (
        "auth0|1:2",
        "user",
    )


async def test_missing_scope_is_403(service: Service) -> None:
    org = await service.organization()
    reader = (await service.key(org.owner, org.id, "projects:read")).caller
    assert (await reader.get(f"{VERIFY}projects:read")).status_code == 200
    for scope in ("projects:write", "other:read", "projects:*", "*:*"):
        answer = await reader.get(f"{VERIFY}{scope}")
        assert refusal(answer) == (403, "insufficient_scope")
        assert answer.headers["www-authenticate"] == (
            f'Bearer realm="api", error="insufficient_scope", scope="{scope}"'
        )
        assert "x-tenant-id" not in answer.headers


async def test_dash_requires_a_credential_without_a_scope(service: Service) -> None:
    org = await service.organization()
    nothing = (await service.key(org.owner, org.id, "nothing:here")).caller
    assert (await nothing.get(f"{VERIFY}-")).status_code == 200
    assert refusal(await service.anonymous.get(f"{VERIFY}-")) == (401, "missing_credential")


async def test_scope_is_in_the_path_and_nowhere_else(service: Service) -> None:
    org = await service.organization()
    reader = (await service.key(org.owner, org.id, "projects:read")).caller
    assert (
        await reader.get(f"{VERIFY}projects:read/any/path", scope="projects:write")
    ).status_code == 200
    for path in (f"{VERIFY}projects:write/projects:read", f"{VERIFY}projects:write/"):
        assert refusal(await reader.get(path, scope="projects:read"))[0] == 403
    forwarded = {
        "X-Original-Uri": f"{VERIFY}projects:read",
        "X-Forwarded-Uri": "/",
        "X-Scope": "projects:read",
    }
    answer = await reader.call("GET", f"{VERIFY}projects:write", headers=forwarded)
    assert refusal(answer) == (403, "insufficient_scope")


@cases("scope", ["", "projects", "OWNER", "Projects:read", "a:b:c", "--", "%00", "a:b%0A", " -"])
async def test_invalid_scope_rejects_every_request(service: Service, scope: str) -> None:
    org = await service.organization()
    assert refusal(await org.owner.get(f"{VERIFY}{scope}")) == (404, "not_found")


async def test_body_is_not_read(service: Service) -> None:
    org = await service.organization()
    answer = await org.owner.call("POST", f"{VERIFY}-", content=b"x" * (2 << 20))
    assert answer.status_code == 200
    answer = await org.owner.call(
        "POST", f"{VERIFY}-", content=b"x", headers={"Content-Encoding": "gzip"}
    )
    assert answer.status_code == 200


async def test_suspended_and_ended_tenants_are_rejected(service: Service) -> None:
    org = await service.organization()
    body = {"name": "x", "ownerEmail": "a@x.example", "suspended": True}
    await service.operator.put(org.path, body)
    assert refusal(await org.owner.get(f"{VERIFY}-")) == (403, "org_suspended")
    await service.operator.delete(org.path)
    assert refusal(await org.owner.get(f"{VERIFY}-")) == (401, "api_key_revoked")


async def test_rejection_is_in_a_header_for_gateways_without_bodies(service: Service) -> None:
    org = await service.organization()
    reader = (await service.key(org.owner, org.id, "projects:read")).caller
    for caller, scope in (
        (service.anonymous, "-"),
        (reader, "projects:write"),
        (org.owner, "no-scope"),
    ):
        answer = await caller.get(f"{VERIFY}{scope}")
        assert answer.headers["x-problem"].encode() == answer.content
        assert answer.headers["x-problem"].isascii()
    assert "x-problem" not in (await reader.get(f"{VERIFY}-")).headers


async def test_identity_is_in_the_headers_that_the_examples_pass_on(service: Service) -> None:
    org = await service.organization()
    answer = await org.owner.get(f"{VERIFY}-")
    others = {
        "content-length",
        "x-request-id",
        "ratelimit",
        "ratelimit-policy",
        "cache-control",
        "vary",
        "x-content-type-options",
    }
    expected = {name.lower() for name in IDENTITY if name not in (EXTERNAL_ID, FEATURES)}
    assert set(answer.headers) - others == expected


MODES = {
    "": ("live",),
    "/mode/test": ("test",),
    "/mode/any": ("live", "test"),
    "/mode/live": ("live",),
}
"""What follows the scope in the path, and the modes that it accepts."""


@cases("scope", ["-", "projects:read"])
@cases("suffix", MODES)
async def test_mode_is_required_by_the_path(service: Service, scope: str, suffix: str) -> None:
    org = await service.organization()
    test = (await service.key(org.owner, org.id, "projects:read", mode="test")).caller
    for mode, caller in (("live", org.owner), ("live", service.user(org=org.id)), ("test", test)):
        answer = await caller.get(f"{VERIFY}{scope}{suffix}", mode="any")
        if mode in MODES[suffix]:
            assert (answer.status_code, answer.headers["x-mode"]) == (200, mode)
        else:
            assert refusal(answer) == (403, "mode_mismatch")
            assert answer.headers["x-problem"].encode() == answer.content
            assert "x-mode" not in answer.headers
            assert "x-tenant-id" not in answer.headers


ADDED = ("projects/7", "mode/any/projects", "mode/test/", "mode/live/x/mode/any", "mode/live/x%2Fy")
"""What follows the scope where a gateway adds the client's path to the one that its configuration
writes.
"""
MISSPELT = (
    "MODE/any",
    "mode/an%79",
    "%6Dode/any",
    "mode%2Fany",
    "/mode/any",
    "projects/mode/test",
    "mode/live/mode/any",
    "mode/live%2Fmode/any",
    "mode/tset",
)
"""What follows the scope, and looks like a mode without being one in its place."""


async def test_path_appended_by_a_gateway_accepts_live_mode_only(service: Service) -> None:
    org = await service.organization()
    test = (await service.key(org.owner, org.id, "projects:read", mode="test")).caller
    headers = {"X-Mode": "test"}
    for path in (f"{VERIFY}{scope}/{rest}" for scope in ("-", "projects:read") for rest in ADDED):
        for method in ("GET", "DELETE"):
            answer = await test.call(method, path, headers=headers)
            assert refusal(answer) == (403, "mode_mismatch"), path
        assert (await org.owner.get(path)).status_code == 200, path


async def test_misspelt_mode_is_refused_for_everybody(service: Service) -> None:
    org = await service.organization()
    for path in (
        f"{VERIFY}{scope}/{rest}" for scope in ("-", "projects:read") for rest in MISSPELT
    ):
        for caller in (org.owner, service.anonymous):
            assert refusal(await caller.get(path)) == (404, "not_found"), path
    encoded = f"{VERIFY}projects:read%2Fmode/any"
    assert refusal(await org.owner.get(encoded)) == (404, "not_found")


async def test_scope_comes_before_the_mode(service: Service) -> None:
    org = await service.organization()
    test = (await service.key(org.owner, org.id, "projects:read", mode="test")).caller
    for suffix in ("", "/mode/test"):
        assert refusal(await test.get(f"{VERIFY}projects:write{suffix}")) == (
            403,
            "insufficient_scope",
        )
