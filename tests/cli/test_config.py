"""``tenantry config``."""

import json
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.command_support import DEMO_KEY, Home, Workspace
from tests.cli.test_completion import offered
from tests.support.commands import Done

ADDRESS: Final = "https://accounts.example.com"
COMMENTED: Final = f"""\
# my services
profile = "work"   # used if you name none

[profiles.work]
base_url = "{ADDRESS}" # the company's

[profiles.staging]
base_url = "https://staging.example.com"
keyring = true
"""


def file_of(home: Home) -> Path:
    return home.folder / "config" / "tenantry" / "config.toml"


def content(home: Home) -> dict[str, Any]:
    return tomllib.loads(file_of(home).read_text())


async def test_first_value_creates_file_and_profile(home: Home) -> None:
    assert await home.run("config", "set", "base_url", f"{ADDRESS}/") == Done(
        0, "", f"Set base_url in profile default: {ADDRESS}\n"
    )
    assert content(home) == {"profiles": {"default": {"base_url": ADDRESS}}}
    assert stat.S_IMODE(file_of(home).stat().st_mode) == 0o600
    assert (await home.run("config", "get", "base_url")).out == f"{ADDRESS}\n"
    assert (await home.run("config", "path")).out == f"{file_of(home)}\n"


async def test_values_are_used_by_the_other_commands(workspace: Workspace) -> None:
    home, secret = workspace.home, str(workspace.organization.owner.credential)
    (home.folder / "key").write_text(secret)
    # of the current folder
    for name, value in (("base_url", workspace.served.url), ("api_key_file", "key")):
        assert (await home.run("config", "set", name, value, "--profile", "work")).code == 0
    assert (await home.run("config", "set", "profile", "work")).code == 0
    assert f"profile work in {file_of(home)}" in (await home.run("whoami")).out


async def test_comments_and_other_values_stay(home: Home) -> None:
    home.configure(COMMENTED)
    assert (await home.run("config", "set", "org", "acme")).code == 0
    assert (await home.run("--profile", "staging", "config", "set", "keyring", "false")).code == 0
    assert (await home.run("config", "set", "profile", "staging")).code == 0
    text = file_of(home).read_text()
    for comment in ("# my services", "# used if you name none", "# the company's"):
        assert comment in text
    assert content(home) == {
        "profile": "staging",
        "profiles": {
            "work": {"base_url": ADDRESS, "org": "acme"},
            "staging": {"base_url": "https://staging.example.com", "keyring": False},
        },
    }
    assert (await home.run("config", "unset", "base_url", "--profile", "work")).code == 0
    assert (await home.run("config", "unset", "profile")).code == 0
    assert content(home)["profiles"]["work"] == {"org": "acme"}
    assert "profile" not in content(home)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[profiles]",
        "[profiles.work]\n[profiles.work2]\nkeyring = true",
        'profiles.work.base_url = "https://a.example"\n',
        'profiles = {work = {base_url = "https://a.example"}}\n',
        'profiles.work = {base_url = "https://a.example"}\n',
        '[profiles]\nwork = {base_url = "https://a.example"}\n',
        '[profiles]\nwork.base_url = "https://a.example"\n# the end\n',
        '[profiles."work"]\r\nbase_url = "https://a.example"\r\n',
        "[profiles.other]\nscope = '''\na\nb'''\n\n\n",
    ],
)
async def test_every_form_of_the_file_is_changed_correctly(home: Home, text: str) -> None:
    home.configure(text)
    before = tomllib.loads(text).get("profiles", {})
    for key, value in (("org", "acme"), ("base_url", ADDRESS)):
        assert (await home.run("config", "set", key, value, "--profile", "work")).code == 0
    assert (await home.run("config", "set", "profile", "work")).code == 0
    work = {**before.get("work", {}), "org": "acme", "base_url": ADDRESS}
    assert content(home) == {"profile": "work", "profiles": {**before, "work": work}}
    for key in work:
        assert (await home.run("config", "unset", key, "--profile", "work")).code == 0
    assert (await home.run("config", "unset", "profile")).code == 0
    before.pop("work", None)
    assert content(home) == ({"profiles": before} if before else {})


async def test_profiles_are_listed(home: Home) -> None:
    home.configure(COMMENTED)
    assert (await home.run("config", "list")).out == (
        f"profile           work\nwork.base_url     {ADDRESS}\n"
        "staging.base_url  https://staging.example.com\nstaging.keyring   true\n"
    )
    assert json.loads((await home.run("config", "list", "--json", "--profile", "work")).out) == {
        "path": str(file_of(home)),
        "profile": "work",
        "profiles": {"work": {"base_url": ADDRESS}},
    }
    assert (await home.run("config", "list", "--profile", "missing")).code == 5
    assert (
        await home.run("config", "list", XDG_CONFIG_HOME="/nowhere")
    ).out == "profile  default\n"


async def test_secrets_in_the_file_are_masked(home: Home) -> None:
    home.configure(
        f'[profiles.default]\napi_key_file = "{DEMO_KEY}"\nissuer = "https://user:password@a.example"\n'
    )
    for arguments in (
        ("list",),
        ("list", "--json"),
        ("get", "api_key_file"),
        ("get", "issuer", "--json"),
    ):
        done = await home.run("config", *arguments)
        assert (done.code, "[redacted]" in done.out) == (0, True)
        assert DEMO_KEY not in done.out
        assert "password" not in done.out


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base_url", "http://accounts.example.com"),
        ("base_url", "https://user:password@accounts.example.com"),
        ("base_url", "accounts.example.com"),
        ("issuer", "https://login.example.com?secret=1"),
        ("org", "a/b"),
        ("api_key_file", DEMO_KEY),
        ("scope", f"openid {DEMO_KEY}"),
        ("audience", " "),
        ("audience", "a\nb"),
        ("keyring", "maybe"),
        ("profile", "missing"),
        ("profile", "../x"),
        ("api_key", "x"),
    ],
)
async def test_faulty_value_is_not_stored(home: Home, key: str, value: str) -> None:
    done = await home.run("config", "set", key, value)
    assert (done.code, done.out) == (2, "")
    assert not file_of(home).exists()
    assert DEMO_KEY not in done.err
    assert "password@" not in done.err


async def test_missing_value_and_profile(home: Home) -> None:
    assert await home.run("config", "get", "scope") == Done(
        5, "", "scope is not set in profile default.\n"
    )
    assert (await home.run("config", "get", "scope", "--profile", "missing")).code == 2
    assert (await home.run("config", "unset", "scope")).code == 0
    assert not file_of(home).exists()


@pytest.mark.parametrize(
    "text",
    [
        "profile = ",
        "[profiles.default]\nnonsense = 1\n",
        "profile = 1\n",
        "\x00",
        f"profile = {'[' * 1500}",
        f"profile = {'9' * 5000}",
    ],
)
async def test_faulty_file_is_not_changed(home: Home, text: str) -> None:
    home.configure(text)
    for arguments in (("set", "scope", "a"), ("unset", "scope"), ("list",)):
        done = await home.run("config", *arguments)
        assert (done.code, str(file_of(home)) in done.err) == (2, True)
    assert file_of(home).read_text() == text


async def test_link_and_mode_of_the_file_stay(home: Home) -> None:
    dotfile = home.folder / "dotfiles.toml"
    dotfile.write_text(COMMENTED)
    dotfile.chmod(0o640)
    file_of(home).parent.mkdir(parents=True)
    file_of(home).symlink_to(dotfile)
    assert (await home.run("config", "set", "scope", "openid")).code == 0
    assert file_of(home).is_symlink()
    assert 'scope = "openid"' in dotfile.read_text()
    assert stat.S_IMODE(dotfile.stat().st_mode) == 0o640


async def test_file_that_cannot_be_written_is_an_error(home: Home) -> None:
    done = await home.run(
        "config", "set", "scope", "openid", "--json", XDG_CONFIG_HOME="/proc/none"
    )
    assert (done.code, done.out) == (1, "")
    assert "cannot be written: No such file or directory" in json.loads(done.err)["error"]["detail"]


async def test_keys_and_profiles_are_completed(home: Home) -> None:
    home.configure(COMMENTED)
    assert await offered(home, "config", "set", "ba") == ["base_url"]
    assert await offered(home, "config", "list", "--profile", "st") == ["staging"]
    assert await offered(home, "whoami", "--profile", "") == ["work", "staging"]
