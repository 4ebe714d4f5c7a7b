"""Signing in with a real browser, which answers on loopback; and answers that are not the provider's."""

import asyncio
import json
import socket
import struct
import sys
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx2

from tests.cli.signing_in import ADDRESS, Entrance
from tests.support.browser import running_browser
from tests.support.commands import Running
from tests.support.sign_in import ADA, Form

# Stands for a browser, in which somebody refuses: it talks, and tells what it was given.
BROWSER: Final = """
import json, os, pathlib, sys, urllib.parse, urllib.request
print("chatter", flush=True)
print("chatter", file=sys.stderr, flush=True)
seen = {"environment": dict(os.environ), "streams": [os.readlink(f"/proc/self/fd/{n}") for n in range(3)]}
pathlib.Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(sys.argv[1]).query))
answer = urllib.parse.urlencode({"error": "access_denied", "state": asked["state"], "iss": os.environ["ISSUER"]})
urllib.request.urlopen(f"{asked['redirect_uri']}?{answer}").read()
"""


async def address_in(command: Running) -> str:
    """The address that the command asks to open."""
    await command.until("\n\n", "err")
    found = ADDRESS.search(command.text["err"])
    assert found is not None
    return found[1]


async def test_choice_in_a_browser_signs_in(entrance: Entrance) -> None:
    async with running_browser() as browser, entrance.home.running("login", "--no-browser") as command:
        page = await browser.new_page()
        await page.goto(await address_in(command))
        await page.click(f"button[value={ADA.sub}]")
        await page.wait_for_selector("text=Go back to the terminal")
        assert await command.wait() == 0, command.text
    assert f"as {ADA.sub} of org_demo." in command.text["err"]
    assert (await entrance.home.run("whoami")).code == 0


async def test_browser_is_opened_at_the_address_that_is_told(entrance: Entrance) -> None:
    opened = entrance.home.folder / "opened"
    browser = entrance.home.folder / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" >{opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o755)
    done = await entrance.home.run("login", "--timeout", "3", BROWSER=f"{browser} %s")
    assert done.code == 4
    assert opened.read_text() in done.err.splitlines()


async def test_browser_gets_no_stream_and_no_secret_and_runs_nothing_of_the_folder(entrance: Entrance) -> None:
    folder = entrance.home.folder
    browser = folder / "browser.py"
    browser.write_text(BROWSER)
    (folder / "webbrowser.py").write_text("raise SystemExit('of the folder')")
    secrets = {"TENANTRY_API_KEY": "a", "API_KEY_PEPPER": "b", "DATABASE_URL": "c", "AWS_SECRET_ACCESS_KEY": "d"}
    values = {**secrets, "BROWSER": f"{sys.executable} {browser} %s", "ISSUER": entrance.companion.issuer}
    done = await entrance.home.run("login", "--json", **values)
    assert (done.code, done.out) == (4, "")
    assert "chatter" not in done.err
    seen = json.loads((folder / "seen.json").read_text())
    assert seen["streams"] == ["/dev/null"] * 3
    assert not secrets.keys() & seen["environment"].keys()
    assert seen["environment"]["PATH"]


def reset(callback: str, target: str | None = None) -> None:
    """Connect to the callback, ask for this there, and reset the connection."""
    address = urlsplit(callback)
    with socket.create_connection((address.hostname, address.port)) as connection:
        if target is not None:
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_answer_counts_though_whoever_brings_it_does_not_stay(entrance: Entrance) -> None:
    async with entrance.home.running("login", "--no-browser") as command:
        query = parse_qs(urlsplit(await address_in(command)).query)
        callback = query["redirect_uri"][0]
        answer = f"error=access_denied&iss={entrance.companion.issuer}&state={query['state'][0]}"
        for target in (None, "/", "http://[", f"/callback?{answer}"):
            await asyncio.to_thread(reset, callback, target)
        assert await command.wait() == 4
    assert "did not sign you in: access_denied" in command.text["err"]
    assert "Traceback" not in command.text["err"]


async def test_what_is_no_address_is_turned_away(entrance: Entrance) -> None:
    async with entrance.home.running("login", "--no-browser") as command:
        callback = urlsplit(parse_qs(urlsplit(await address_in(command)).query)["redirect_uri"][0])
        reader, writer = await asyncio.open_connection(callback.hostname, callback.port)
        writer.write(b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert "Traceback" not in command.text["err"]


async def test_request_is_as_the_standards_want_it(entrance: Entrance) -> None:
    async with entrance.home.running("login", "--no-browser", "--scope", "openid", "--audience", "urn:a") as command:
        asked = parse_qs(urlsplit(await address_in(command)).query)
    assert asked["response_type"] == ["code"]
    assert asked["code_challenge_method"] == ["S256"]
    assert len(asked["code_challenge"][0]) == 43
    assert len(asked["state"][0]) >= 32
    assert urlsplit(asked["redirect_uri"][0]).hostname == "127.0.0.1"
    assert (asked["scope"], asked["audience"], asked["resource"]) == (["openid"], ["urn:a"], ["urn:a"])


async def test_answers_of_others_are_turned_away_and_the_right_one_counts(entrance: Entrance) -> None:
    async with (
        entrance.home.running("login", "--no-browser") as command,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        address = await address_in(command)
        query = parse_qs(urlsplit(address).query)
        callback, state = query["redirect_uri"][0], query["state"][0]
        for answer in ("code=a", "code=a&state=wrong", f"code=a&state={state}&state={state}", "code=a&state=%ff"):
            assert (await client.get(f"{callback}?{answer}")).status_code == 400
        assert (await client.get(callback.replace("/callback", "/favicon.ico"))).status_code == 404
        form = Form((await client.get(address)).text)
        chosen = await client.post(
            entrance.companion.issuer + form.action, data={**form.fields, "user": ADA.sub}, follow_redirects=True
        )
        assert chosen.status_code == 200
        assert await command.wait() == 0, command.text


async def test_refusal_of_the_provider_ends_the_sign_in(entrance: Entrance) -> None:
    for answer, said in (
        ("error=access_denied&error_description=Not%20you&iss={issuer}", "Not you"),
        ("code=a&iss=https://evil.example", "not the identity provider's own"),
        ("code=a", "not the identity provider's own"),
        ("iss={issuer}", "holds no code"),
        ("code=made-up&iss={issuer}", "gave no token"),
    ):
        async with (
            entrance.home.running("login", "--no-browser") as command,
            httpx2.AsyncClient(trust_env=False) as client,
        ):
            query = parse_qs(urlsplit(await address_in(command)).query)
            given = answer.format(issuer=entrance.companion.issuer)
            await client.get(f"{query['redirect_uri'][0]}?{given}&state={query['state'][0]}")
            assert await command.wait() == 4
        assert said in command.text["err"]
    assert not entrance.tokens.exists()
