"""``tenantry status``."""

import json
import zlib
from typing import Any

import pytest

from tenantry.server.asgi_types import Receive, Scope, Send
from tests.cli.command_support import SECRET, Home, Workspace
from tests.cli.sign_in_support import SignInHome
from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.support.ports import free_port
from tests.support.serving import served


async def document(workspace: Workspace, **values: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await workspace.done("status", "--json", **values))
    return found


async def test_service_credential_tenant_and_limits_are_shown(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("api-keys:read", name="CI")
    await workspace.done("projects", "create", "--name", "One")
    shown = dict(line.split("  ", 1) for line in (await workspace.done("status")).splitlines())
    values = {name: value.strip() for name, value in shown.items()}
    assert values.pop("requests a minute").endswith(" of 6,000")
    assert values == {
        "service": f"{workspace.served.url} (from TENANTRY_BASE_URL)",
        "health": "ready",
        "profile": "default",
        "credential": f"{values['credential'].split()[0]} (API key) from TENANTRY_API_KEY",
        "expires": "never",
        "may": "everything (OWNER)",
        "organization": f"{workspace.organization.id}, live mode",
        "plan": "Free plan, no subscription",
        "API keys": "2 of 10",
        "projects": "1 of 3",
        "members": "0 of 100",
    }
    assert SECRET.search(str(shown)) is None
    narrow = await document(workspace, TENANTRY_API_KEY=secret)
    assert (narrow["id"], narrow["scopes"]) == (key_id, ["api-keys:read"])
    assert {
        name: use["used"] for name, use in narrow["limits"].items() if "requests" not in name
    } == {
        "apiKeys": 2,
        "projects": None,
        "members": None,
    }


async def test_revoked_and_replaced_keys_do_not_count(workspace: Workspace) -> None:
    for _ in range(2):
        key_id, _ = await workspace.key("a:b")
        await workspace.done("keys", "revoke", key_id, "--yes")
    key_id, _ = await workspace.key("a:b")
    await workspace.done("keys", "rotate", key_id, "--overlap", "1h")
    assert (await document(workspace))["limits"]["apiKeys"]["used"] == 2


async def test_test_key_counts_no_keys_of_live_mode(workspace: Workspace) -> None:
    _, secret = await workspace.key("*:*", mode="test")
    limits = (await document(workspace, TENANTRY_API_KEY=secret))["limits"]
    assert (limits["apiKeys"]["used"], limits["projects"]["used"]) == (None, 0)


async def test_signed_in_user_sees_it_too(sign_in_home: SignInHome) -> None:
    assert (await sign_in_home.sign_in()).code == 0
    done = await sign_in_home.home.run("status", "--json")
    assert (done.code, json.loads(done.out)["kind"]) == (0, "user")


async def test_without_a_credential_the_health_is_shown(workspace: Workspace) -> None:
    done = await workspace.home.run("status", "--json", "--base-url", workspace.served.url)
    assert (done.code, json.loads(done.out)["health"]["status"]) == (4, "ok")
    assert "Set TENANTRY_API_KEY" in json.loads(done.err)["error"]["detail"]


async def test_rejected_credential_exits_with_4(workspace: Workspace) -> None:
    done = await workspace.run("status", TENANTRY_API_KEY="svc_live_" + "0" * 49)
    assert (done.code, "health      ready" in done.out) == (4, True)
    assert "(401 invalid_credential)" in done.err


async def test_nothing_configured_says_what_to_set(home: Home) -> None:
    done = await home.run("status", "--json", "--base-url", f"http://127.0.0.1:{free_port()}")
    assert (done.code, done.out, json.loads(done.err)["error"]["exitCode"]) == (6, "", 6)
    home.configure("[profiles.default]\nbase_url = 1\n")
    assert (await home.run("status")).code == 2


@pytest.mark.parametrize(
    "failure",
    [Failure.RESET_BEFORE, Failure.TRUNCATED, Failure.UNAVAILABLE_BEFORE, Failure.GARBAGE],
)
async def test_service_that_fails_exits_with_6(workspace: Workspace, failure: Failure) -> None:
    async with faulty_proxy(workspace.served.url, lambda: failure) as (address, _):
        done = await workspace.run("status", "--base-url", address)
    assert done.code == 6, done
    assert address in done.err


async def test_service_that_is_not_ready_gets_no_credential(home: Home) -> None:
    requests = list[tuple[str, bytes | None]]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            requests.append((scope["path"], dict(scope["headers"]).get(b"authorization")))
            start = {
                "type": "http.response.start",
                "status": 503,
                "headers": [(b"content-type", b"application/json")],
            }
            await send(start)
            body = b'{"status": "not ready", "waitingFor": ["database\\u001b[31m"]}'
            await send({"type": "http.response.body", "body": body})

    async with served(app) as url:
        done = await home.run(
            "status", TENANTRY_BASE_URL=url, TENANTRY_API_KEY="svc_live_" + "0" * 49
        )
    assert (done.code, "health   not ready, waiting for database\ufffd[31m" in done.out) == (
        6,
        True,
    )
    assert requests == [("/readyz", None)]


async def test_health_that_is_too_large_is_an_error(home: Home) -> None:
    mebibyte = bytes(1024 * 1024)
    packer = zlib.compressobj(level=1, wbits=31)
    body = b"".join(packer.compress(mebibyte) for _ in range(257)) + packer.flush()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [(b"content-encoding", b"gzip")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async with served(app) as url:
        done = await home.run("status", "--base-url", url)
    assert (done.code, "The response (200) is too large." in done.err) == (1, True), done
