"""The precedence of options, environment, configuration file and the demo of the folder."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from tests.cli.command_support import DEMO_KEY, Home, Workspace, create_demo
from tests.cli.sign_in_support import SignInHome
from tests.support.cases import cases
from tests.support.sign_in import ADA, CLIENT_ID


async def who(workspace: Workspace, *arguments: str, **values: str) -> dict[str, Any]:
    """Run whoami with only these variables."""
    done = await workspace.home.run("whoami", "--json", *arguments, **values)
    assert done.code == 0, done
    document: dict[str, Any] = json.loads(done.out)
    return document


async def keys_of_two(workspace: Workspace) -> tuple[tuple[str, str], tuple[str, str]]:
    return await workspace.key("projects:read", name="one"), await workspace.key(
        "projects:read", name="two"
    )


async def test_file_of_the_option_takes_precedence_over_the_environment(
    workspace: Workspace,
) -> None:
    (one, one_secret), (_, two_secret) = await keys_of_two(workspace)
    file = workspace.home.folder / "key"
    file.write_text(f"{one_secret}\n")
    values = {"TENANTRY_API_KEY": two_secret, "TENANTRY_BASE_URL": "http://127.0.0.1:1"}
    document = await who(
        workspace, "--api-key-file", str(file), "--base-url", workspace.served.url, **values
    )
    assert (document["id"], document["credential"]) == (one, "--api-key-file")


async def test_environment_takes_precedence_over_the_file(workspace: Workspace) -> None:
    (_, one_secret), (two, two_secret) = await keys_of_two(workspace)
    (workspace.home.folder / "key").write_text(one_secret)
    workspace.home.configure(
        f'[profiles.default]\nbase_url = "{workspace.served.url}"\napi_key_file = "{workspace.home.folder}/key"\n'
    )
    document = await who(workspace, TENANTRY_API_KEY=two_secret)
    assert (document["id"], document["service"]) == (two, workspace.served.url)


async def test_profile_of_the_option_takes_precedence_over_the_environment(
    workspace: Workspace,
) -> None:
    (one, one_secret), (_, two_secret) = await keys_of_two(workspace)
    (workspace.home.folder / "key").write_text(one_secret)
    workspace.home.configure(
        '[profiles.default]\nbase_url = "http://127.0.0.1:1"\n'
        f'[profiles.work]\nbase_url = "{workspace.served.url}"\napi_key_file = "~/key"\n'
    )
    values = {"TENANTRY_API_KEY": two_secret, "TENANTRY_BASE_URL": "http://127.0.0.1:1"}
    assert (await who(workspace, "--profile", "work", **values))["id"] == one
    assert (await who(workspace, TENANTRY_PROFILE="work"))["profile"] == "work"
    before = await workspace.run("--profile", "work", "whoami", "--json", **values)
    assert json.loads(before.out)["id"] == one
    nearer = await workspace.run(
        "--profile", "default", "whoami", "--json", "--profile", "work", **values
    )
    assert json.loads(nearer.out)["id"] == one


async def test_file_names_the_default_profile(workspace: Workspace) -> None:
    workspace.home.configure(
        f'profile = "work"\n[profiles.work]\nbase_url = "{workspace.served.url}"\n'
    )
    _, secret = await workspace.key("a:b")
    assert (await who(workspace, TENANTRY_API_KEY=secret))["service"] == workspace.served.url


async def test_key_of_a_profile_is_not_sent_to_another_service(home: Home) -> None:
    (home.folder / "key").write_text("svc_live_of_production")
    home.configure(
        '[profiles.default]\nbase_url = "https://accounts.example.com"\napi_key_file = "~/key"\n'
    )
    done = await home.run("whoami", TENANTRY_BASE_URL="http://127.0.0.1:1")
    assert done.code == 4
    assert "is for https://accounts.example.com" in done.err


async def test_organization_of_a_profile_is_for_users_and_not_for_keys(
    workspace: Workspace,
) -> None:
    workspace.home.configure('[profiles.default]\norg = "another"\n')
    assert (await workspace.run("keys", "list")).code == 0
    refused = await workspace.run("keys", "list", "--org", "another")
    assert (refused.code, "org_mismatch" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.default]\nbase_ulr = 'x'", "base_ulr"),
        ("[profiles.default]\nkeyring = 'yes'", "keyring"),
        ("[profiles", "not a configuration"),
        ("profile = '../x'", "1 to 64"),
    ],
)
async def test_invalid_file_is_reported(home: Home, text: str, said: str) -> None:
    home.configure(text)
    done = await home.run("whoami")
    assert (done.code, done.out) == (2, "")
    assert said in done.err


async def test_unknown_profile_is_reported(home: Home) -> None:
    home.configure("[profiles.work]\n")
    done = await home.run("whoami", "--profile", "wrok")
    assert done.code == 2
    assert "There is no profile wrok" in done.err
    assert "work" in done.err


@pytest.mark.parametrize("content", [None, "", "two words"])
async def test_key_file_without_a_key_is_reported(home: Home, content: str | None) -> None:
    if content is not None:
        (home.folder / "key").write_text(content)
    done = await home.run("whoami", "--api-key-file", "key")
    assert done.code == 4
    assert done.err.startswith("--api-key-file: ")


async def test_env_file_of_the_folder_does_not_name_the_service(home: Home) -> None:
    (home.folder / ".env").write_text(
        "TENANTRY_BASE_URL=http://127.0.0.1:1\nTENANTRY_API_KEY=svc_live_x\n"
    )
    done = await home.run("whoami")
    assert done.code == 4
    assert "http://127.0.0.1:3001 (from the default)" in done.err


class Listener(NamedTuple):
    """A listener on this machine, and how many connections it got."""

    address: str
    visits: list[None]


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    visits: list[None] = []

    def come(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(None)
        writer.close()

    async with await asyncio.start_server(come, "127.0.0.1", 0) as server:
        yield Listener(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", visits)


async def test_demo_of_the_folder_is_used_with_a_note(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("a:b")
    create_demo(workspace.home, workspace.served.url, secret)
    done = await workspace.home.run("whoami")
    assert done.code == 0
    assert key_id in done.out
    assert done.err.startswith("Using the demo in ")
    assert secret not in done.out + done.err


async def test_key_of_the_demo_of_the_folder_asks_that_demo(workspace: Workspace) -> None:
    (one, live), (two, test) = await keys_of_two(workspace)
    create_demo(workspace.home, workspace.served.url, live, TENANTRY_DEMO_TEST_KEY=test)
    for key_id, secret in ((one, live), (two, test)):
        done = await workspace.home.run("whoami", TENANTRY_API_KEY=secret)
        assert (done.code, key_id in done.out) == (0, True), done
        assert done.err.endswith(", with the key of TENANTRY_API_KEY.\n")


async def test_another_key_is_not_sent_to_the_demo_of_the_folder(home: Home) -> None:
    async with listening() as heard:
        create_demo(home, heard.address)
        other = f"{DEMO_KEY[:-1]}1"
        done = await home.run("whoami", TENANTRY_API_KEY=other)
    assert "Using the demo" not in done.err
    assert heard.visits == []


@pytest.mark.parametrize(
    "values", [{"TENANTRY_BASE_URL": "http://127.0.0.1:1"}, {"TENANTRY_PROFILE": "default"}]
)
async def test_demo_never_overrides_a_setting(home: Home, values: dict[str, str]) -> None:
    home.configure("[profiles.default]\n")
    create_demo(home, "http://127.0.0.1:3001")
    done = await home.run("whoami", **values)
    assert done.code == 4
    assert "demo" not in done.err


async def test_database_of_another_program_does_not_hide_the_demo(workspace: Workspace) -> None:
    _, secret = await workspace.key("a:b")
    create_demo(workspace.home, workspace.served.url, secret)
    (workspace.home.folder / ".env").write_text("DATABASE_URL=postgresql://127.0.0.1:1/shop\n")
    done = await workspace.home.run("whoami", DATABASE_URL="postgresql://127.0.0.1:1/shop")
    assert (done.code, done.err.startswith("Using the demo in ")) == (0, True)


async def test_stopped_demo_is_reported(home: Home) -> None:
    create_demo(home, "http://127.0.0.1:1")
    done = await home.run("whoami")
    assert done.code == 6
    assert f"Start it in {home.folder}: tenantry demo\n" in done.err


async def test_demo_folder_cannot_name_a_remote_address(home: Home) -> None:
    create_demo(home, "http://127.0.0.1:1", OIDC_ISSUER="https://evil.example", OIDC_CLIENT_ID="a")
    signing_in = await home.run("login", "--no-browser")
    assert signing_in.code == 2
    assert "is not known" in signing_in.err


@pytest.mark.parametrize(
    "address", ["http://evil.example:80", "http://127.0.0.1:1@evil.example", "https://127.0.0.1"]
)
async def test_demo_of_the_folder_is_on_this_machine(home: Home, address: str) -> None:
    create_demo(home, address)
    done = await home.run("whoami")
    assert (done.code, "demo" in done.err) == (4, False)


async def test_demo_folder_cannot_read_the_environment(home: Home) -> None:
    async with listening() as heard:
        create_demo(
            home,
            heard.address,
            "${GITHUB_TOKEN}",
            OIDC_ISSUER=heard.address,
            OIDC_CLIENT_ID="${GITHUB_TOKEN}",
        )
        values = {"GITHUB_TOKEN": DEMO_KEY}
        assert (await home.run("whoami", **values)).code == 4
        assert (await home.run("login", "--no-browser", **values)).code == 2
    assert heard.visits == []


async def test_key_of_a_demo_is_sent_only_to_that_demo(home: Home) -> None:
    create_demo(home, "http://127.0.0.1:1")
    async with listening() as heard:
        port = heard.address.rpartition(":")[2]
        (home.folder / ".env").write_text(
            f"PORT={port}\nHOST=127.0.0.1\nTENANTRY_DEMO_ADDRESS={heard.address}\n"
        )
        done = await home.run("whoami", PORT=port)
    assert (done.code, heard.visits) == (6, [])


@pytest.mark.parametrize("content", [b"\xff\xfe", b"A=" + b"x" * 100_000 + b"\xff"])
async def test_binary_settings_file_is_ignored(home: Home, content: bytes) -> None:
    (home.folder / ".env").write_bytes(content)
    done = await home.run("whoami")
    assert (done.code, "Traceback" in done.err) == (4, False)


async def test_settings_file_that_is_a_pipe_is_ignored(home: Home) -> None:
    os.mkfifo(home.folder / ".env")
    assert (await home.run("whoami")).code == 4


async def test_key_of_the_environment_is_not_sent_to_the_service_of_a_named_profile(
    workspace: Workspace,
) -> None:
    async with listening() as heard:
        workspace.home.configure(f'[profiles.staging]\nbase_url = "{heard.address}"\n')
        done = await workspace.run("whoami", "--profile", "staging")
        assert (done.code, heard.visits) == (4, [])
        assert "TENANTRY_API_KEY is set, but --profile staging names another service." in done.err
    workspace.home.configure(f'[profiles.same]\nbase_url = "{workspace.served.url}"\n')
    assert (await workspace.run("whoami", "--profile", "same")).code == 0


async def test_organization_of_a_named_profile_takes_precedence_over_the_environment(
    sign_in_home: SignInHome,
) -> None:
    sign_in_home.home.configure(
        f'[profiles.prod]\nbase_url = "{sign_in_home.served.url}"\nissuer = "{sign_in_home.companion.issuer}"\n'
        f'client_id = "{CLIENT_ID}"\norg = "{ADA.org_id}"\n'
    )
    signed_in = await sign_in_home.sign_in("--profile", "prod")
    assert signed_in.code == 0, signed_in
    done = await sign_in_home.home.run("whoami", "--profile", "prod", TENANTRY_ORG="another")
    assert done.code == 0, done
    assert (
        await sign_in_home.home.run("whoami", TENANTRY_PROFILE="prod", TENANTRY_ORG="another")
    ).code == 2


async def test_relative_key_file_is_relative_to_the_configuration(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("a:b")
    workspace.home.configure(
        f'[profiles.default]\nbase_url = "{workspace.served.url}"\napi_key_file = "key"\n'
    )
    (workspace.home.folder / "key").write_text("svc_live_of_somebody_else")
    (workspace.home.folder / "config" / "tenantry" / "key").write_text(secret)
    assert (await who(workspace))["id"] == key_id


@cases(
    ("arguments", "values"),
    [
        (("--profile", ""), {}),
        (("--base-url", " "), {}),
        (("--org", ""), {}),
        (("--org", "a b"), {}),
        ((), {"TENANTRY_ORG": "Größe"}),
        ((), {"TENANTRY_BASE_URL": "http://127.0.0.1:1\r"}),
        ((), {"TENANTRY_BASE_URL": "http://[::1"}),
        (("--base-url", "https://127.0.0.1:1/a b"), {}),
    ],
)
async def test_invalid_options_are_reported(
    home: Home, arguments: tuple[str, ...], values: dict[str, str]
) -> None:
    done = await home.run("whoami", *arguments, **{"TENANTRY_API_KEY": DEMO_KEY, **values})
    assert (done.code, done.out, "Traceback" in done.err) == (2, "", False), done


@pytest.mark.parametrize("file", ["~nosuch-user/key", "a\u0001b", "."])
async def test_invalid_key_file_is_reported(home: Home, file: str) -> None:
    home.configure(f"[profiles.default]\napi_key_file = {json.dumps(file)}\n")
    done = await home.run("whoami")
    assert (done.code, "Traceback" in done.err) == (4, False)
    assert "cannot be read" in done.err


async def test_unknown_default_profile_is_reported(home: Home) -> None:
    home.configure('profile = "porduction"\n[profiles.production]\n')
    done = await home.run("whoami")
    assert done.code == 2
    assert "There is no profile porduction" in done.err


@pytest.mark.parametrize(
    "address", ["https://u:hunter2@127.0.0.1:1", "https://:hunter2@127.0.0.1:1"]
)
async def test_password_in_an_address_is_rejected_and_not_shown(home: Home, address: str) -> None:
    done = await home.run("whoami", "--base-url", address, TENANTRY_API_KEY=DEMO_KEY)
    assert done.code == 2
    assert "must not contain a user or password" in done.err
    assert "hunter2" not in done.err
