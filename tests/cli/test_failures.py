"""Failing commands: messages, JSON errors and exit codes."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_support import SECRET, Home, Workspace
from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.support.cases import cases
from tests.support.ports import free_port


def error_of(text: str) -> dict[str, Any]:
    """Parse the JSON document on stderr."""
    error: dict[str, Any] = json.loads(text)["error"]
    return error


async def test_revoked_key(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("projects:read")
    await workspace.done("keys", "revoke", key_id, "--yes")
    done = await workspace.run("projects", "list", TENANTRY_API_KEY=secret)
    assert (done.code, done.out) == (4, "")
    first, next_step, where = done.err.splitlines()
    assert first == "The API key has been revoked. (401 api_key_revoked)"
    assert next_step == "Create another key and use it. This one is from TENANTRY_API_KEY."
    assert workspace.served.url in where


async def test_missing_scope(workspace: Workspace) -> None:
    _, secret = await workspace.key("projects:read")
    done = await workspace.run("keys", "list", TENANTRY_API_KEY=secret)
    assert done.code == 4
    assert done.err.startswith("This needs the scope api-keys:read. (403 insufficient_scope)\n")


async def test_unknown_id_as_json(workspace: Workspace) -> None:
    done = await workspace.run("keys", "show", "key_nobody", "--json")
    assert (done.code, done.out) == (5, "")
    error = error_of(done.err)
    assert (error["status"], error["code"], error["exitCode"]) == (404, "not_found", 5)
    assert error["requestId"]
    assert error["service"] == workspace.served.url


async def test_faulty_field_as_json(workspace: Workspace) -> None:
    done = await workspace.run("projects", "create", "--name", "", "--json")
    assert done.code == 2
    assert [failure["location"] for failure in error_of(done.err)["errors"]] == ["name"]


async def test_plan_limit_exits_with_1(workspace: Workspace) -> None:
    for number in range(3):
        await workspace.done("projects", "create", "--name", str(number))
    done = await workspace.run("projects", "create", "--name", "one too many")
    assert done.code == 1
    assert "plan_limit_reached" in done.err


async def test_address_with_the_prefix_of_the_api_is_taken_as_meant(workspace: Workspace) -> None:
    for address in (f"{workspace.served.url}/api/v1", f"{workspace.served.url}/api/v1/"):
        for how in ({"TENANTRY_BASE_URL": address}, {}):
            arguments = () if how else ("--base-url", address)
            done = await workspace.run("whoami", *arguments, **how)
            assert (done.code, done.err) == (0, ""), address
    await workspace.done("config", "set", "base_url", f"{workspace.served.url}/api/v1/")
    assert await workspace.done("config", "get", "base_url") == f"{workspace.served.url}\n"


async def test_404_of_another_server_says_that_the_address_is_wrong(workspace: Workspace) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nconnection: close\r\n\r\nnginx"
        )
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        done = await workspace.run("plans", TENANTRY_BASE_URL=address)
    assert (done.code, done.out) == (6, "")
    assert f"{address} (from TENANTRY_BASE_URL) is not the address of tenantry" in done.err


async def test_unreachable_service_exits_with_6(workspace: Workspace) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    done = await workspace.run("plans", TENANTRY_BASE_URL=address)
    assert (done.code, done.out) == (6, "")
    assert "Connection refused" in done.err
    assert "TENANTRY_BASE_URL" in done.err
    error = error_of((await workspace.run("plans", "--json", "--base-url", address)).err)
    assert (error["exitCode"], error["service"]) == (6, address)


@pytest.mark.parametrize(
    "failure",
    [Failure.UNAVAILABLE_BEFORE, Failure.TRUNCATED, Failure.RESET_BEFORE],
    ids=lambda f: f.name,
)
async def test_unavailable_service_exits_with_6(workspace: Workspace, failure: Failure) -> None:
    async with faulty_proxy(workspace.served.url, lambda: failure) as (address, _):
        done = await workspace.run("plans", "--base-url", address)
    assert (done.code, done.out) == (6, "")


async def test_lost_response_to_a_create_is_reported(workspace: Workspace) -> None:
    async with faulty_proxy(workspace.served.url, lambda: Failure.RESET_AFTER) as (address, _):
        done = await workspace.run("projects", "create", "--name", "a", "--base-url", address)
    assert done.code == 6
    assert "The service may have carried the request out" in done.err


async def test_response_that_is_not_json_exits_with_6(workspace: Workspace, tmp_path: Path) -> None:
    async with faulty_proxy(workspace.served.url, lambda: Failure.GARBAGE) as (address, _):
        done = await workspace.run("plans", "--base-url", address)
    assert done.code == 6
    assert "Traceback" not in done.err


async def test_interrupted_key_creation_warns_of_a_key(workspace: Workspace) -> None:
    asked = asyncio.Event()

    def hang() -> Failure:
        asked.set()
        return Failure.SILENT

    create = (
        "keys",
        "create",
        "--name",
        "a",
        "--scope",
        "a:b",
        "--org",
        workspace.organization.id,
    )
    async with (
        faulty_proxy(workspace.served.url, hang) as (address, _),
        workspace.home.running_process(
            *create, **{**workspace.values, "TENANTRY_BASE_URL": address}
        ) as command,
    ):
        async with asyncio.timeout(60):
            await asked.wait()
        code = await command.end(signal.SIGINT)
    assert code == 1
    assert command.text["out"] == ""
    assert "the service may have created a key" in command.text["err"]
    assert "Traceback" not in command.text["err"]


async def test_without_a_credential(home: Home) -> None:
    done = await home.run("keys", "list")
    assert (done.code, done.out) == (4, "")
    assert "TENANTRY_API_KEY" in done.err
    assert "tenantry login" in done.err
    assert error_of((await home.run("keys", "list", "--json")).err)["exitCode"] == 4


@pytest.mark.parametrize("key", ["svc live", "svc_ä"])
async def test_malformed_key_is_not_sent_and_not_shown(home: Home, key: str) -> None:
    done = await home.run("keys", "list", TENANTRY_API_KEY=key)
    assert done.code == 4
    assert "invalid characters" in done.err
    assert key not in done.err


@cases(
    "address",
    [
        "http://accounts.example.com",
        "ftp://127.0.0.1",
        "127.0.0.1:3001",
        "https://u@x.example",
        "http://127.0.0.1:x",
        "",
    ],
)
async def test_malformed_or_unsafe_address_is_a_usage_error(home: Home, address: str) -> None:
    done = await home.run(
        "plans", "--base-url", address or "https://x.example?a=b", TENANTRY_API_KEY="svc_live_x"
    )
    assert done.code == 2
    assert done.err.startswith("--base-url: ")


async def test_error_shows_no_secret(workspace: Workspace) -> None:
    _, secret = await workspace.key("a:b")
    for arguments in (
        ["keys", "list"],
        ["projects", "show", f"x-{secret}"],
        ["keys", "list", "--json"],
    ):
        done = await workspace.run(*arguments, TENANTRY_API_KEY=secret)
        assert done.code == 4
        assert not SECRET.search(done.err)


@cases(
    "arguments",
    [
        ("keys", "create", "--name", "a"),
        ("keys", "create", "--scope", "a:b"),
        ("keys", "list", "--nonsense"),
        (
            "keys",
            "create",
            "--name",
            "a",
            "--scope",
            "a:b",
            "--expires-at",
            "9999-12-31T23:59:59-01:00",
        ),
        ("projects", "create", "--name", "Gr\udcfc"),
        ("keys", "show", "\udcff"),
    ],
)
async def test_usage_error_is_reported_without_a_request(
    home: Home, arguments: tuple[str, ...]
) -> None:
    values = {"TENANTRY_API_KEY": "svc_live_x", "TENANTRY_BASE_URL": "http://127.0.0.1:1"}
    told = await home.run(*arguments, **values)
    assert (told.code, told.out, "Traceback" in told.err) == (2, "", False)
    as_json = await home.run(*arguments, "--json", **values)
    assert (as_json.code, error_of(as_json.err)["exitCode"]) == (2, 2)
