"""How commands fail: what is said, in which form, and the exit code of each kind."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import SECRET, Home, Place
from tests.sdk.faulty_proxy import Fault, faulty_proxy
from tests.support.findings import free_port


def error_of(text: str) -> dict[str, Any]:
    """The one JSON document on stderr."""
    error: dict[str, Any] = json.loads(text)["error"]
    return error


async def test_revoked_key(place: Place) -> None:
    key_id, secret = await place.key("projects:read")
    await place.done("keys", "revoke", key_id, "--yes")
    done = await place.run("projects", "list", TENANTRY_API_KEY=secret)
    assert (done.code, done.out) == (4, "")
    first, next_step, where = done.err.splitlines()
    assert first == "The API key has been revoked. (401 api_key_revoked)"
    assert next_step == "Make another key and use that. This one is from TENANTRY_API_KEY."
    assert place.served.url in where


async def test_missing_scope(place: Place) -> None:
    _, secret = await place.key("projects:read")
    done = await place.run("keys", "list", TENANTRY_API_KEY=secret)
    assert done.code == 4
    assert done.err.startswith("This needs the scope api-keys:read. (403 insufficient_scope)\n")


async def test_unknown_id_as_json(place: Place) -> None:
    done = await place.run("keys", "show", "key_nobody", "--json")
    assert (done.code, done.out) == (5, "")
    error = error_of(done.err)
    assert (error["status"], error["code"], error["exitCode"]) == (404, "not_found", 5)
    assert error["requestId"]
    assert error["service"] == place.served.url


async def test_faulty_field_as_json(place: Place) -> None:
    done = await place.run("projects", "create", "--name", "", "--json")
    assert done.code == 2
    assert [fault["location"] for fault in error_of(done.err)["errors"]] == ["name"]


async def test_limit_of_the_plan_is_no_matter_of_the_credential(place: Place) -> None:
    for number in range(3):
        await place.done("projects", "create", "--name", str(number))
    done = await place.run("projects", "create", "--name", "one too many")
    assert done.code == 1
    assert "plan_limit_reached" in done.err


async def test_service_that_is_away(place: Place) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    done = await place.run("plans", TENANTRY_BASE_URL=address)
    assert (done.code, done.out) == (6, "")
    assert "Connection refused" in done.err
    assert "TENANTRY_BASE_URL" in done.err
    error = error_of((await place.run("plans", "--json", "--base-url", address)).err)
    assert (error["exitCode"], error["service"]) == (6, address)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE_BEFORE, Fault.TRUNCATED, Fault.RESET_BEFORE], ids=lambda f: f.name)
async def test_service_that_does_not_serve_now(place: Place, fault: Fault) -> None:
    async with faulty_proxy(place.served.url, lambda: fault) as (address, _):
        done = await place.run("plans", "--base-url", address)
    assert (done.code, done.out) == (6, "")


async def test_lost_answer_to_a_create_is_told(place: Place) -> None:
    async with faulty_proxy(place.served.url, lambda: Fault.RESET_AFTER) as (address, _):
        done = await place.run("projects", "create", "--name", "a", "--base-url", address)
    assert done.code == 6
    assert "The service may have carried the request out" in done.err


async def test_something_else_answers(place: Place, tmp_path: Path) -> None:
    async with faulty_proxy(place.served.url, lambda: Fault.GARBAGE) as (address, _):
        done = await place.run("plans", "--base-url", address)
    assert done.code == 6
    assert "Traceback" not in done.err


async def test_interruption_while_a_key_is_made_says_what_may_be_left(place: Place) -> None:
    asked = asyncio.Event()

    def hang() -> Fault:
        asked.set()
        return Fault.SILENT

    create = ("keys", "create", "--name", "a", "--scope", "a:b", "--organization", place.organization.id)
    async with (
        faulty_proxy(place.served.url, hang) as (address, _),
        place.home.running_process(*create, **{**place.values, "TENANTRY_BASE_URL": address}) as command,
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


@pytest.mark.parametrize(
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
async def test_address_that_is_none_or_not_safe(home: Home, address: str) -> None:
    done = await home.run("plans", "--base-url", address or "https://x.example?a=b", TENANTRY_API_KEY="svc_live_x")
    assert done.code == 2
    assert done.err.startswith("--base-url: ")


async def test_refusal_shows_no_secret(place: Place) -> None:
    _, secret = await place.key("a:b")
    for arguments in (["keys", "list"], ["projects", "show", f"x{secret}"], ["keys", "list", "--json"]):
        done = await place.run(*arguments, TENANTRY_API_KEY=secret)
        assert done.code == 4
        assert not SECRET.search(done.err)


@pytest.mark.parametrize(
    "arguments",
    [
        ("keys", "create", "--name", "a"),
        ("keys", "create", "--scope", "a:b"),
        ("keys", "list", "--nonsense"),
        ("keys", "create", "--name", "a", "--scope", "a:b", "--expires-at", "9999-12-31T23:59:59-01:00"),
        ("keys", "create", "--name", "Gr\udcfc", "--scope", "a:b"),
        ("keys", "show", "\udcff"),
    ],
)
async def test_wrong_use_is_told_without_asking_the_service(home: Home, arguments: tuple[str, ...]) -> None:
    values = {"TENANTRY_API_KEY": "svc_live_x", "TENANTRY_BASE_URL": "http://127.0.0.1:1"}
    told = await home.run(*arguments, **values)
    assert (told.code, told.out, "Traceback" in told.err) == (2, "", False)
    as_json = await home.run(*arguments, "--json", **values)
    assert (as_json.code, error_of(as_json.err)["exitCode"]) == (2, 2)
