"""The storage of a sign-in: writing, replacing and removing it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenantry_cli.client_configuration import ClientConfiguration, ServiceOptions
from tenantry_cli.sign_in_storage import SignInStorage, StoredSignIn
from tenantry_sdk import Secret, Token, errors
from tests.cli.command_support import Home
from tests.cli.fake_provider import (
    GOOD,
    REVOKE,
    TOKEN,
    FakeProvider,
    Reply,
    fake_provider,
    signed_in,
    stored_token,
)
from tests.cli.sign_in_support import KEYRING, SignInHome, browser_client, with_keyring
from tests.support.ports import free_port
from tests.support.sign_in import CLIENT_ID

BROKEN_KEYRING = (
    KEYRING
    + """
def get_password(service, name): raise RuntimeError("the keyring is locked")
def delete_password(service, name): raise RuntimeError("the keyring is locked")
"""
)


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    """An identity provider, and a service."""
    async with fake_provider() as running:
        yield running


async def is_revoked(sign_in_home: SignInHome, refresh_token: str) -> bool:
    """Return whether the identity provider rejects this refresh token."""
    async with browser_client() as client:
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "client_id": CLIENT_ID,
        }
        answer = (await client.post(f"{sign_in_home.companion.issuer}/token", data=form)).json()
    return bool(answer.get("error") == "invalid_grant")


async def test_tokens_name_their_issuer_and_client(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    assert sign_in_home.stored_tokens["issuer"] == sign_in_home.companion.issuer
    assert sign_in_home.stored_tokens["client_id"] == CLIENT_ID


def test_tokens_of_a_replaced_sign_in_are_not_loaded(tmp_path: Path) -> None:
    storage = SignInStorage(tmp_path / "tenantry", "default")
    storage.check(keyring=False)
    one, two = (
        StoredSignIn(f"https://{name}.example.com", "https://login.example.com", "cli")
        for name in ("one", "two")
    )
    token = Token(
        Secret("a"), refresh_token=Secret("r"), issuer=one.issuer, client_id=one.client_id
    )
    storage.save(one, token)
    assert storage.tokens(one).load() == token
    running = storage.tokens(one)
    storage.save(two, token)
    assert running.load() is None
    assert storage.tokens(two).load() == token
    storage.remove(keyring=False)
    assert storage.tokens(two).load() is None


async def test_folder_is_accessible_to_its_owner_only(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    assert sign_in_home.home.token_folder.stat().st_mode & 0o777 == 0o700


async def test_sign_out_revokes_tokens_in_a_file_that_others_can_read(
    sign_in_home: SignInHome,
) -> None:
    await sign_in_home.sign_in()
    refresh_token = sign_in_home.stored_tokens["refresh_token"]
    sign_in_home.tokens.chmod(0o644)
    done = await sign_in_home.home.run("logout", "--json")
    assert done.code == 0
    assert json.loads(done.out)["refreshTokenEnded"] is True
    assert await is_revoked(sign_in_home, refresh_token)


async def test_sign_out_reports_unreadable_tokens(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    sign_in_home.tokens.write_text("{")
    done = await sign_in_home.home.run("logout", "--json")
    assert done.code == 1
    assert json.loads(done.out)["refreshTokenEnded"] is False
    assert (
        "Removed here, but not revoked at the identity provider."
        in json.loads(done.err)["error"]["detail"]
    )
    assert not sign_in_home.tokens.exists()
    assert (await sign_in_home.home.run("logout")).err == "You are not signed in.\n"


async def test_sign_out_of_a_malformed_sign_in_removes_and_revokes_it(
    sign_in_home: SignInHome,
) -> None:
    await sign_in_home.sign_in()
    refresh_token = sign_in_home.stored_tokens["refresh_token"]
    session = sign_in_home.tokens.with_name("session.json")
    session.write_text("{")
    done = await sign_in_home.home.run("logout")
    assert (done.code, done.err) == (0, "Signed out.\n")
    assert not session.exists()
    assert not sign_in_home.tokens.exists()
    assert await is_revoked(sign_in_home, refresh_token)


async def test_sign_out_with_a_failing_keyring_removes_the_sign_in(
    sign_in_home: SignInHome,
) -> None:
    path = with_keyring(sign_in_home.home)
    await sign_in_home.sign_in(**path)
    with_keyring(sign_in_home.home, BROKEN_KEYRING)
    done = await sign_in_home.home.run("logout", **path)
    assert done.code == 1
    assert "the keyring is locked" in done.err
    assert "Traceback" not in done.err
    assert (await sign_in_home.home.run("logout", **path)).err == "You are not signed in.\n"


async def test_sign_out_of_an_unknown_profile_is_an_error(home: Home) -> None:
    home.configure("[profiles.work]\n")
    done = await home.run("logout", "--profile", "wrok")
    assert done.code == 2
    assert "There is no profile wrok" in done.err
    assert (await home.run("logout", "--profile", "work")).code == 0


async def test_tokens_without_a_sign_in_are_revoked_too(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    refresh_token = sign_in_home.stored_tokens["refresh_token"]
    sign_in_home.tokens.with_name("session.json").unlink()
    assert (await sign_in_home.home.run("logout")).code == 0
    assert await is_revoked(sign_in_home, refresh_token)
    assert not sign_in_home.tokens.exists()


async def test_unwritable_folder_is_reported_before_the_sign_in(
    home: Home, provider: FakeProvider
) -> None:
    state = home.folder / "file"
    state.touch()
    done = await home.run("login", "--device", *provider.flags(), XDG_STATE_HOME=str(state))
    assert done.code == 1
    assert "The sign-in cannot be stored" in done.err
    assert "Traceback" not in done.err
    assert provider.asked == []


async def test_tokens_that_cannot_be_stored_are_revoked(home: Home, provider: FakeProvider) -> None:
    entered = asyncio.Event()
    provider.answer(TOKEN, Reply(200, GOOD, entered))
    flags = provider.flags(f"http://127.0.0.1:{free_port()}")
    async with home.running("login", "--device", *flags) as command:
        await command.until("Waiting ...", "err")
        folder = home.token_folder / "default"
        folder.rename(home.token_folder / "gone")
        folder.touch()
        entered.set()
        assert await command.wait() == 1
    assert "Traceback" not in command.text["err"]
    assert [form["token"] for form in provider.forms_at(REVOKE)] == ["refresh-1"]


async def test_new_sign_in_does_not_revoke_tokens_of_the_same_client(
    sign_in_home: SignInHome,
) -> None:
    await sign_in_home.sign_in()
    before = sign_in_home.stored_tokens["refresh_token"]
    done = await sign_in_home.sign_in()
    assert done.code == 0
    assert sign_in_home.stored_tokens["refresh_token"] != before
    assert not await is_revoked(sign_in_home, before)
    assert not await is_revoked(sign_in_home, sign_in_home.stored_tokens["refresh_token"])


async def test_new_sign_in_revokes_tokens_of_another_client(
    home: Home, provider: FakeProvider
) -> None:
    signed_in(home, provider.url, provider.url, ends_in=60, client="another")
    done = await home.run("login", "--device", *provider.flags(f"http://127.0.0.1:{free_port()}"))
    assert done.code == 0
    assert [form["token"] for form in provider.forms_at(REVOKE)] == ["refresh-0"]
    assert stored_token(home)["refresh_token"] == "refresh-1"


async def test_new_sign_in_reports_old_tokens_that_it_cannot_revoke(
    home: Home, provider: FakeProvider
) -> None:
    signed_in(home, provider.url, f"http://127.0.0.1:{free_port()}", ends_in=60)
    done = await home.run("login", "--device", *provider.flags(f"http://127.0.0.1:{free_port()}"))
    assert done.code == 0
    assert "The refresh token of the previous sign-in works until it expires." in done.err
    assert stored_token(home)["refresh_token"] == "refresh-1"


async def test_new_sign_in_removes_tokens_from_the_other_store(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    path = with_keyring(sign_in_home.home)
    assert (await sign_in_home.sign_in(**path)).code == 0
    assert not sign_in_home.tokens.exists()
    keyring = sign_in_home.home.folder / "keyring.json"
    config = sign_in_home.home.folder / "config" / "tenantry" / "config.toml"
    config.write_text(config.read_text().replace("keyring = true", ""))
    assert (await sign_in_home.sign_in(**path)).code == 0
    assert keyring.read_text() == "{}"


async def test_key_that_takes_precedence_over_the_sign_in_is_reported(
    sign_in_home: SignInHome,
) -> None:
    config = sign_in_home.home.folder / "config" / "tenantry" / "config.toml"
    config.write_text(config.read_text() + 'api_key_file = "~/key"\n')
    (sign_in_home.home.folder / "key").write_text("svc_live_of_the_file")
    done = await sign_in_home.sign_in()
    assert done.code == 0
    assert (
        f"The API key from profile default in {config} takes precedence over this sign-in."
        in done.err
    )
    (sign_in_home.home.folder / "key").unlink()
    assert "cannot be read" in (await sign_in_home.sign_in()).err
    done = await sign_in_home.sign_in(TENANTRY_API_KEY="svc_live_x")
    assert "The API key from TENANTRY_API_KEY takes precedence over this sign-in." in done.err


async def test_token_refreshed_while_the_command_ends_is_stored(
    home: Home, provider: FakeProvider
) -> None:
    answering, loop = asyncio.Event(), asyncio.get_running_loop()
    provider.answer(TOKEN, Reply(200, GOOD, answering))
    signed_in(home, provider.url, provider.url, ends_in=-1)

    def command() -> None:
        with (
            ClientConfiguration(ServiceOptions(), home.values)
            .target()
            .client(timeout=0.5) as client
        ):
            with pytest.raises(errors.TokenTimedOutError):
                client.auth.whoami()
            loop.call_soon_threadsafe(answering.set)

    await asyncio.to_thread(command)
    assert stored_token(home)["refresh_token"] == "refresh-1"
