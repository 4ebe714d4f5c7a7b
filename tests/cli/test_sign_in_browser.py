"""Sign-in with a browser, whose response arrives on loopback; and responses that are not the
provider's.
"""

import asyncio
import json
import socket
import struct
import sys
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.command_support import Home
from tests.cli.sign_in_support import SignInHome, SignInServices, address_in, browser_client
from tests.support.command_runner import Command
from tests.support.commands import Done
from tests.support.sign_in import ADA, Form

# A fake browser that denies the sign-in. It writes to its streams, and records what it was given.
BROWSER: Final = """
import json, os, pathlib, sys, urllib.parse, urllib.request
print("chatter", flush=True)
print("chatter", file=sys.stderr, flush=True)
streams = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
seen = {"address": sys.argv[1], "environment": dict(os.environ), "streams": streams}
pathlib.Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(sys.argv[1]).query))
answer = urllib.parse.urlencode({"error": "access_denied", "state": asked["state"], "iss": os.environ["ISSUER"]})
urllib.request.urlopen(f"{asked['redirect_uri']}?{answer}").read()
"""


class Opened(NamedTuple):
    """A `tenantry login` that has opened a browser."""

    done: Done
    address: str
    """The address given to the browser."""
    environment: dict[str, str]
    streams: list[str]
    """The targets of its three standard streams."""
    secrets: set[str]
    """The variables that it must not have."""


@pytest.fixture(scope="module")
async def opened(
    sign_in_services: SignInServices, tmp_path_factory: pytest.TempPathFactory
) -> Opened:
    """A browser opened by a command that runs as a process, in a folder with a module named as the
    library.
    """
    home = SignInHome.at(sign_in_services, Home(tmp_path_factory.mktemp("home"))).home
    browser = home.folder / "browser.py"
    browser.write_text(BROWSER)
    (home.folder / "webbrowser.py").write_text("raise SystemExit('of the folder')")
    secrets = {
        "TENANTRY_API_KEY": "a",
        "API_KEY_PEPPER": "b",
        "DATABASE_URL": "c",
        "AWS_SECRET_ACCESS_KEY": "d",
    }
    values = {
        **secrets,
        "BROWSER": f"{sys.executable} {browser} %s",
        "ISSUER": sign_in_services.companion.issuer,
    }
    done = await home.run_process("login", "--json", **values)
    seen = json.loads((home.folder / "seen.json").read_text())
    return Opened(done, secrets=set(secrets), **seen)


def test_browser_opens_the_printed_address(opened: Opened) -> None:
    assert opened.address in opened.done.err.splitlines()


def test_browser_gets_no_stream_and_no_secret_and_imports_nothing_from_the_folder(
    opened: Opened,
) -> None:
    assert (opened.done.code, opened.done.out) == (4, "")
    assert "chatter" not in opened.done.err
    assert opened.streams == ["/dev/null"] * 3
    assert not opened.secrets & opened.environment.keys()
    assert opened.environment["PATH"]


async def end(command: Command) -> None:
    """Deny the sign-in, so that the command ends."""
    query = parse_qs(urlsplit(await address_in(command)).query)
    async with browser_client() as client:
        answer = {"error": "access_denied", "state": query["state"][0]}
        await client.get(query["redirect_uri"][0], params=answer)


def reset(callback: str, target: str | None = None) -> None:
    """Send a request to the callback, and reset the connection."""
    address = urlsplit(callback)
    with socket.create_connection((address.hostname, address.port)) as connection:
        if target is not None:
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_response_counts_even_if_the_browser_disconnects(sign_in_home: SignInHome) -> None:
    async with sign_in_home.start_login("--no-browser") as command:
        query = parse_qs(urlsplit(await address_in(command)).query)
        callback = query["redirect_uri"][0]
        answer = (
            f"error=access_denied&iss={sign_in_home.companion.issuer}&state={query['state'][0]}"
        )
        for target in (None, "/", "http://[", f"/callback?{answer}"):
            await asyncio.to_thread(reset, callback, target)
        assert await command.wait() == 4
    assert "did not sign you in: access_denied" in command.text["err"]
    assert "Traceback" not in command.text["err"]


async def test_malformed_address_is_rejected(sign_in_home: SignInHome) -> None:
    async with sign_in_home.start_login("--no-browser") as command:
        callback = urlsplit(parse_qs(urlsplit(await address_in(command)).query)["redirect_uri"][0])
        reader, writer = await asyncio.open_connection(callback.hostname, callback.port)
        writer.write(b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 404 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        await end(command)
    assert "Traceback" not in command.text["err"]


async def test_authorization_request_follows_the_standards(sign_in_home: SignInHome) -> None:
    async with sign_in_home.start_login(
        "--no-browser", "--scope", "openid", "--audience", "urn:a"
    ) as command:
        asked = parse_qs(urlsplit(await address_in(command)).query)
        await end(command)
    assert asked["response_type"] == ["code"]
    assert asked["code_challenge_method"] == ["S256"]
    assert len(asked["code_challenge"][0]) == 43
    assert len(asked["state"][0]) >= 32
    assert urlsplit(asked["redirect_uri"][0]).hostname == "127.0.0.1"
    assert (asked["scope"], asked["audience"], asked["resource"]) == (
        ["openid"],
        ["urn:a"],
        ["urn:a"],
    )


async def test_responses_with_a_wrong_state_are_rejected(sign_in_home: SignInHome) -> None:
    async with sign_in_home.start_login("--no-browser") as command, browser_client() as client:
        address = await address_in(command)
        query = parse_qs(urlsplit(address).query)
        callback, state = query["redirect_uri"][0], query["state"][0]
        for answer in (
            "code=a",
            "code=a&state=wrong",
            f"code=a&state={state}&state={state}",
            "code=a&state=%ff",
        ):
            assert (await client.get(f"{callback}?{answer}")).status_code == 400
        assert (await client.get(callback.replace("/callback", "/favicon.ico"))).status_code == 404
        form = Form((await client.get(address)).text)
        chosen = await client.post(
            sign_in_home.companion.issuer + form.action,
            data={**form.fields, "user": ADA.sub},
            follow_redirects=True,
        )
        assert chosen.status_code == 200
        assert await command.wait() == 0, command.text


async def test_error_response_ends_the_sign_in(sign_in_home: SignInHome) -> None:
    for answer, said in (
        ("error=access_denied&error_description=Not%20you&iss={issuer}", "Not you"),
        ("code=a&iss=https://evil.example", "not from the identity provider"),
        ("code=a", "not from the identity provider"),
        ("iss={issuer}", "has no code"),
        ("code=made-up&iss={issuer}", "issued no token"),
    ):
        async with sign_in_home.start_login("--no-browser") as command, browser_client() as client:
            query = parse_qs(urlsplit(await address_in(command)).query)
            given = answer.format(issuer=sign_in_home.companion.issuer)
            await client.get(f"{query['redirect_uri'][0]}?{given}&state={query['state'][0]}")
            assert await command.wait() == 4
        assert said in command.text["err"]
    assert not sign_in_home.tokens.exists()
