"""Which service and which credential count: flag, environment, configuration file, and the demo of the folder."""

import json
from typing import Any

import pytest

from tenantry.cli.demo_folder import DEMO_FILE
from tenantry.demo.names import LIVE_KEY
from tests.cli.support import Home, Place


async def who(place: Place, *arguments: str, **values: str) -> dict[str, Any]:
    """Who a command takes its caller for, with these variables and no others."""
    done = await place.home.run("whoami", "--json", *arguments, **values)
    assert done.code == 0, done
    document: dict[str, Any] = json.loads(done.out)
    return document


async def keys_of_two(place: Place) -> tuple[tuple[str, str], tuple[str, str]]:
    return await place.key("projects:read", name="one"), await place.key("projects:read", name="two")


async def test_file_of_the_flag_goes_before_the_environment(place: Place) -> None:
    (one, one_secret), (_, two_secret) = await keys_of_two(place)
    file = place.home.folder / "key"
    file.write_text(f"{one_secret}\n")
    values = {"TENANTRY_API_KEY": two_secret, "TENANTRY_BASE_URL": "http://127.0.0.1:1"}
    document = await who(place, "--api-key-file", str(file), "--base-url", place.served.url, **values)
    assert (document["id"], document["credential"]) == (one, "--api-key-file")


async def test_environment_goes_before_the_file(place: Place) -> None:
    (_, one_secret), (two, two_secret) = await keys_of_two(place)
    (place.home.folder / "key").write_text(one_secret)
    place.home.configure(
        f'[profiles.default]\nbase_url = "{place.served.url}"\napi_key_file = "{place.home.folder}/key"\n'
    )
    document = await who(place, TENANTRY_API_KEY=two_secret)
    assert (document["id"], document["service"]) == (two, place.served.url)


async def test_profile_of_the_flag_goes_before_the_environment(place: Place) -> None:
    (one, one_secret), (_, two_secret) = await keys_of_two(place)
    (place.home.folder / "key").write_text(one_secret)
    place.home.configure(
        '[profiles.default]\nbase_url = "http://127.0.0.1:1"\n'
        f'[profiles.work]\nbase_url = "{place.served.url}"\napi_key_file = "~/key"\n'
    )
    values = {"TENANTRY_API_KEY": two_secret, "TENANTRY_BASE_URL": "http://127.0.0.1:1"}
    assert (await who(place, "--profile", "work", **values))["id"] == one
    assert (await who(place, TENANTRY_PROFILE="work"))["profile"] == "work"


async def test_file_names_the_profile_that_counts(place: Place) -> None:
    place.home.configure(f'profile = "work"\n[profiles.work]\nbase_url = "{place.served.url}"\n')
    _, secret = await place.key("a:b")
    assert (await who(place, TENANTRY_API_KEY=secret))["service"] == place.served.url


async def test_key_of_a_profile_goes_to_no_other_service(home: Home) -> None:
    (home.folder / "key").write_text("svc_live_of_production")
    home.configure('[profiles.default]\nbase_url = "https://accounts.example.com"\napi_key_file = "~/key"\n')
    done = await home.run("whoami", TENANTRY_BASE_URL="http://127.0.0.1:1")
    assert done.code == 4
    assert "is for https://accounts.example.com" in done.err


async def test_organization_of_a_profile_is_for_users_and_not_for_keys(place: Place) -> None:
    place.home.configure('[profiles.default]\norganization = "another"\n')
    assert (await place.run("keys", "list")).code == 0
    assert (await place.run("keys", "list", "--organization", "another")).code == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.default]\nbase_ulr = 'x'", "base_ulr"),
        ("[profiles.default]\nkeyring = 'yes'", "keyring"),
        ("[profiles", "not a configuration"),
        ("profile = '../x'", "1 to 64"),
    ],
)
async def test_faulty_file_is_told(home: Home, text: str, said: str) -> None:
    home.configure(text)
    done = await home.run("whoami")
    assert (done.code, done.out) == (2, "")
    assert said in done.err


async def test_unknown_profile_is_told(home: Home) -> None:
    home.configure("[profiles.work]\n")
    done = await home.run("whoami", "--profile", "wrok")
    assert done.code == 2
    assert "There is no profile wrok" in done.err
    assert "work" in done.err


@pytest.mark.parametrize("content", [None, "", "two words"])
async def test_key_file_that_holds_none_is_told(home: Home, content: str | None) -> None:
    if content is not None:
        (home.folder / "key").write_text(content)
    done = await home.run("whoami", "--api-key-file", "key")
    assert done.code == 4
    assert done.err.startswith("--api-key-file: ")


async def test_settings_file_of_the_folder_says_nothing_about_the_service(home: Home) -> None:
    (home.folder / ".env").write_text("TENANTRY_BASE_URL=http://127.0.0.1:1\nTENANTRY_API_KEY=svc_live_x\n")
    done = await home.run("whoami")
    assert done.code == 4
    assert "http://127.0.0.1:3001 (from the default)" in done.err


def made_demo(home: Home, key: str, **more: str) -> None:
    folder = home.folder / ".tenantry"
    folder.mkdir()
    lines = [f"{name}={value}\n" for name, value in {LIVE_KEY: key, **more}.items()]
    (folder / DEMO_FILE).write_text("".join(lines))


async def test_demo_of_the_folder_is_used_aloud_where_nothing_is_set(place: Place) -> None:
    key_id, secret = await place.key("a:b")
    made_demo(place.home, secret)
    port = place.served.url.rpartition(":")[2]
    done = await place.home.run("whoami", PORT=port)
    assert done.code == 0
    assert key_id in done.out
    assert done.err.startswith("Using the demo in ")
    assert secret not in done.out + done.err


@pytest.mark.parametrize(
    "values", [{"TENANTRY_BASE_URL": "http://127.0.0.1:1"}, {"TENANTRY_PROFILE": "default"}, {"DATABASE_URL": "x"}]
)
async def test_demo_never_takes_the_place_of_a_setting(home: Home, values: dict[str, str]) -> None:
    home.configure("[profiles.default]\n")
    made_demo(home, "svc_live_of_the_demo")
    done = await home.run("whoami", **values)
    assert done.code == 4
    assert "demo" not in done.err


async def test_demo_that_does_not_run_is_told(home: Home) -> None:
    made_demo(home, "svc_live_of_the_demo")
    done = await home.run("whoami", PORT="1")
    assert done.code == 6
    assert "make run" in done.err


async def test_folder_of_somebody_else_sends_nobody_to_their_addresses(home: Home) -> None:
    made_demo(home, "svc_live_x", OIDC_ISSUER="https://evil.example", OIDC_CLIENT_ID="a")
    signing_in = await home.run("login", "--no-browser")
    assert signing_in.code == 2
    assert "is not known" in signing_in.err
    elsewhere = await home.run("whoami", HOST="evil.example")
    assert elsewhere.code == 4
