"""What is kept of a sign-in: that it can be kept, that it is of this sign-in, and that nothing of it is left over."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenantry.cli.api_client import ApiContext
from tenantry.cli.client_configuration import ClientConfiguration, ServiceOptions
from tenantry.cli.sign_in_storage import SignInStorage, StoredSignIn
from tenantry_sdk import Secret, Token, errors
from tests.cli.signing_in import KEYRING, Entrance, outside, with_keyring
from tests.cli.stand_in import GOOD, REVOKE, TOKEN, Reply, StandIn, kept, signed_in, stand_in
from tests.cli.support import Home
from tests.support.findings import free_port
from tests.support.sign_in import CLIENT_ID

BROKEN_KEYRING = (
    KEYRING
    + """
def get_password(service, name): raise RuntimeError("the keyring is locked")
def delete_password(service, name): raise RuntimeError("the keyring is locked")
"""
)
READ_ONLY_KEYRING = (
    KEYRING
    + """
def set_password(service, name, text): raise RuntimeError("the keyring takes nothing")
"""
)


@pytest.fixture
async def provider() -> AsyncIterator[StandIn]:
    """An identity provider, and a service."""
    async with stand_in() as running:
        yield running


async def has_ended(entrance: Entrance, refresh_token: str) -> bool:
    """Whether the identity provider takes this refresh token no more."""
    async with outside() as client:
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": CLIENT_ID}
        answer = (await client.post(f"{entrance.companion.issuer}/token", data=form)).json()
    return bool(answer.get("error") == "invalid_grant")


async def test_tokens_say_where_they_are_from(entrance: Entrance) -> None:
    await entrance.sign_in()
    assert entrance.kept["issuer"] == entrance.companion.issuer
    assert entrance.kept["client_id"] == CLIENT_ID


def test_tokens_of_another_sign_in_are_none_of_this_one(tmp_path: Path) -> None:
    storage = SignInStorage(tmp_path / "tenantry", "default")
    storage.check_writable(keyring=False)
    one, two = (
        StoredSignIn(f"https://{name}.example.com", "https://login.example.com", "cli") for name in ("one", "two")
    )
    token = Token(Secret("a"), refresh_token=Secret("r"), issuer=one.issuer, client_id=one.client_id)
    storage.save(one, token)
    assert storage.tokens(one).load() == token
    running = storage.tokens(one)
    storage.save(two, token)
    assert running.load() is None
    assert storage.tokens(two).load() == token
    storage.remove()
    assert storage.tokens(two).load() is None


async def test_folder_is_for_its_owner_alone(entrance: Entrance) -> None:
    await entrance.sign_in()
    assert entrance.home.kept.stat().st_mode & 0o777 == 0o700


async def test_file_that_others_can_read_is_ended_too(entrance: Entrance) -> None:
    await entrance.sign_in()
    refresh_token = entrance.kept["refresh_token"]
    entrance.tokens.chmod(0o644)
    done = await entrance.home.run("logout", "--json")
    assert done.code == 0
    assert json.loads(done.out)["refreshTokenEnded"] is True
    assert await has_ended(entrance, refresh_token)


async def test_signing_out_of_what_cannot_be_read_says_that_nothing_was_ended(entrance: Entrance) -> None:
    await entrance.sign_in()
    entrance.tokens.write_text("{")
    done = await entrance.home.run("logout", "--json")
    assert done.code == 1
    assert json.loads(done.out)["refreshTokenEnded"] is False
    assert "Removed here, but not revoked at the identity provider." in json.loads(done.err)["error"]["detail"]
    assert not entrance.tokens.exists()
    assert (await entrance.home.run("logout")).err == "You are not signed in.\n"


async def test_signing_out_of_a_broken_sign_in_removes_and_ends_it(entrance: Entrance) -> None:
    await entrance.sign_in()
    refresh_token = entrance.kept["refresh_token"]
    session = entrance.tokens.with_name("session.json")
    session.write_text("{")
    done = await entrance.home.run("logout")
    assert (done.code, done.err) == (0, "Signed out.\n")
    assert not session.exists()
    assert not entrance.tokens.exists()
    assert await has_ended(entrance, refresh_token)


async def test_signing_out_with_a_keyring_that_fails_forgets_the_sign_in(entrance: Entrance) -> None:
    path = with_keyring(entrance.home)
    await entrance.sign_in(**path)
    with_keyring(entrance.home, BROKEN_KEYRING)
    done = await entrance.home.run("logout", **path)
    assert done.code == 1
    assert "the keyring is locked" in done.err
    assert "Traceback" not in done.err
    assert (await entrance.home.run("logout", **path)).err == "You are not signed in.\n"


async def test_signing_out_of_an_unknown_profile_is_told(home: Home) -> None:
    home.configure("[profiles.work]\n")
    done = await home.run("logout", "--profile", "wrok")
    assert done.code == 2
    assert "There is no profile wrok" in done.err
    assert (await home.run("logout", "--profile", "work")).code == 0


async def test_tokens_without_a_sign_in_are_ended_too(entrance: Entrance) -> None:
    await entrance.sign_in()
    refresh_token = entrance.kept["refresh_token"]
    entrance.tokens.with_name("session.json").unlink()
    assert (await entrance.home.run("logout")).code == 0
    assert await has_ended(entrance, refresh_token)
    assert not entrance.tokens.exists()


async def test_folder_that_cannot_be_written_is_told_before_anybody_signs_in(home: Home, provider: StandIn) -> None:
    state = home.folder / "file"
    state.touch()
    done = await home.run("login", "--device", *provider.flags(), XDG_STATE_HOME=str(state))
    assert done.code == 1
    assert "The sign-in cannot be stored" in done.err
    assert "Traceback" not in done.err
    assert provider.asked == []


async def test_keyring_that_takes_nothing_is_told_before_anybody_signs_in(home: Home, provider: StandIn) -> None:
    home.configure("[profiles.default]\n")
    path = with_keyring(home, READ_ONLY_KEYRING)
    done = await home.run("login", "--device", *provider.flags(), **path)
    assert done.code == 1
    assert "the keyring takes nothing" in done.err
    assert "Traceback" not in done.err
    assert provider.asked == []


async def test_tokens_that_cannot_be_kept_are_ended(home: Home, provider: StandIn) -> None:
    entered = asyncio.Event()
    provider.answer(TOKEN, Reply(200, GOOD, entered))
    flags = provider.flags(f"http://127.0.0.1:{free_port()}")
    async with home.running("login", "--device", *flags) as command:
        await command.until("Waiting ...", "err")
        folder = home.kept / "default"
        folder.rename(home.kept / "gone")
        folder.touch()
        entered.set()
        assert await command.wait() == 1
    assert "Traceback" not in command.text["err"]
    assert [form["token"] for form in provider.asked_for(REVOKE)] == ["refresh-1"]


async def test_signing_in_again_leaves_what_might_end_the_new_sign_in_too(entrance: Entrance) -> None:
    await entrance.sign_in()
    before = entrance.kept["refresh_token"]
    done = await entrance.sign_in()
    assert done.code == 0
    assert entrance.kept["refresh_token"] != before
    assert not await has_ended(entrance, before)
    assert not await has_ended(entrance, entrance.kept["refresh_token"])


async def test_signing_in_elsewhere_ends_the_sign_in_before(home: Home, provider: StandIn) -> None:
    signed_in(home, provider.url, provider.url, ends_in=60, client="another")
    done = await home.run("login", "--device", *provider.flags(f"http://127.0.0.1:{free_port()}"))
    assert done.code == 0
    assert [form["token"] for form in provider.asked_for(REVOKE)] == ["refresh-0"]
    assert kept(home)["refresh_token"] == "refresh-1"


async def test_signing_in_again_says_so_where_the_sign_in_before_goes_on(home: Home, provider: StandIn) -> None:
    signed_in(home, provider.url, f"http://127.0.0.1:{free_port()}", ends_in=60)
    done = await home.run("login", "--device", *provider.flags(f"http://127.0.0.1:{free_port()}"))
    assert done.code == 0
    assert "The refresh token of the previous sign-in works until it expires." in done.err
    assert kept(home)["refresh_token"] == "refresh-1"


async def test_nothing_is_left_of_tokens_in_another_place(entrance: Entrance) -> None:
    await entrance.sign_in()
    path = with_keyring(entrance.home)
    assert (await entrance.sign_in(**path)).code == 0
    assert not entrance.tokens.exists()
    keyring = entrance.home.folder / "keyring.json"
    config = entrance.home.folder / "config" / "tenantry" / "config.toml"
    config.write_text(config.read_text().replace("keyring = true", ""))
    assert (await entrance.sign_in(**path)).code == 0
    assert keyring.read_text() == "{}"


async def test_key_that_goes_before_the_sign_in_is_told(entrance: Entrance) -> None:
    config = entrance.home.folder / "config" / "tenantry" / "config.toml"
    config.write_text(config.read_text() + 'api_key_file = "~/key"\n')
    (entrance.home.folder / "key").write_text("svc_live_of_the_file")
    done = await entrance.sign_in()
    assert done.code == 0
    assert f"The API key from profile default in {config} takes precedence over this sign-in." in done.err
    (entrance.home.folder / "key").unlink()
    assert "cannot be read" in (await entrance.sign_in()).err
    done = await entrance.sign_in(TENANTRY_API_KEY="svc_live_x")
    assert "The API key from TENANTRY_API_KEY takes precedence over this sign-in." in done.err


async def test_token_whose_renewal_is_under_way_at_the_end_is_kept(home: Home, provider: StandIn) -> None:
    answering, loop = asyncio.Event(), asyncio.get_running_loop()
    provider.answer(TOKEN, Reply(200, GOOD, answering))
    signed_in(home, provider.url, provider.url, ends_in=-1)

    def command() -> None:
        with ApiContext(ClientConfiguration(ServiceOptions(), home.values).target(), as_json=True, timeout=0.5) as api:
            with pytest.raises(errors.TokenTimedOutError):
                api.client.auth.whoami()
            loop.call_soon_threadsafe(answering.set)

    await asyncio.to_thread(command)
    assert kept(home)["refresh_token"] == "refresh-1"
