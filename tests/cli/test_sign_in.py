"""Signing in with a code, what is kept, what becomes of it, and signing out."""

import json
import signal

import pytest

from tests.cli.signing_in import CARL, EVE, Entrance, code_in, outside, with_keyring
from tests.cli.stand_in import signed_in
from tests.cli.support import Home
from tests.support.findings import free_port
from tests.support.sign_in import ADA, BOB, CLIENT_ID


async def test_code_signs_in_and_later_commands_need_no_key(entrance: Entrance) -> None:
    async with entrance.logging_in("--device") as command:
        await entrance.choose(await code_in(command), user=ADA.sub)
        done = await command.done()
    assert (done.code, done.out) == (0, "")
    assert f"Signed in to {entrance.served.url} as {ADA.sub} of org_demo.\n" in done.err
    who = json.loads((await entrance.home.run("whoami", "--json")).out)
    assert (who["id"], who["orgId"], who["credential"]) == (ADA.sub, "org_demo", "tenantry login")
    made = await entrance.home.run("projects", "create", "--name", "a")
    assert made.code == 0, made.err


async def test_tokens_are_for_their_owner_alone_and_in_no_output(entrance: Entrance) -> None:
    done = await entrance.sign_in("--json")
    assert json.loads(done.out)["whoami"]["id"] == ADA.sub
    folder = entrance.tokens.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    shown = await entrance.home.run("whoami")
    for secret in (entrance.kept["access_token"], entrance.kept["refresh_token"]):
        assert secret not in done.out + done.err + shown.out + shown.err


async def test_token_that_has_ended_is_renewed_by_the_next_command(entrance: Entrance) -> None:
    await entrance.sign_in()
    before = entrance.kept
    entrance.expire()
    assert (await entrance.home.run("whoami")).code == 0
    assert entrance.kept["refresh_token"] != before["refresh_token"]
    assert (await entrance.home.run("whoami")).code == 0


async def test_sign_in_that_was_ended_elsewhere_is_told(entrance: Entrance) -> None:
    await entrance.sign_in()
    async with outside() as client:
        form = {"token": entrance.kept["refresh_token"], "client_id": CLIENT_ID}
        assert (await client.post(f"{entrance.companion.issuer}/revoke", data=form)).status_code == 200
    entrance.expire()
    done = await entrance.home.run("whoami")
    assert done.code == 4
    assert "Your sign-in has ended." in done.err
    assert "tenantry login" in done.err


async def test_signing_out_ends_the_refresh_token_and_keeps_nothing(entrance: Entrance) -> None:
    await entrance.sign_in()
    refresh_token = entrance.kept["refresh_token"]
    done = await entrance.home.run("logout")
    assert (done.code, done.err) == (0, f"Signed out of {entrance.served.url}.\n")
    assert not any(path.stat().st_size for path in entrance.tokens.parent.iterdir())
    async with outside() as client:
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": CLIENT_ID}
        assert (await client.post(f"{entrance.companion.issuer}/token", data=form)).json()["error"] == "invalid_grant"
    assert (await entrance.home.run("whoami")).code == 4
    assert (await entrance.home.run("logout")).err == "You are not signed in.\n"


async def test_signing_out_without_the_identity_provider_removes_what_was_kept(entrance: Entrance) -> None:
    signed_in(entrance.home, entrance.served.url, f"http://127.0.0.1:{free_port()}", ends_in=60)
    done = await entrance.home.run("logout")
    assert done.code == 6
    assert done.err.startswith("Removed here, but not revoked at the identity provider.")
    assert not entrance.tokens.exists()


async def test_sign_in_counts_for_its_service_alone(entrance: Entrance) -> None:
    await entrance.sign_in()
    other = f"http://127.0.0.1:{free_port()}"
    done = await entrance.home.run("whoami", TENANTRY_BASE_URL=other)
    assert done.code == 4
    assert f"You are signed in to {entrance.served.url}; that sign-in is only for that service." in done.err


async def test_key_of_the_environment_goes_before_the_sign_in(entrance: Entrance) -> None:
    await entrance.sign_in()
    made = await entrance.home.run("keys", "create", "--name", "a", "--scope", "a:b", "--json")
    key = json.loads(made.out)
    assert key["id"] in (await entrance.home.run("whoami", TENANTRY_API_KEY=key["secret"])).out


async def test_each_profile_has_a_sign_in_of_its_own(entrance: Entrance) -> None:
    flags = ["--base-url", entrance.served.url, "--issuer", entrance.companion.issuer, "--client-id", CLIENT_ID]
    assert (await entrance.sign_in("--profile", "work", *flags)).code == 0
    assert (await entrance.home.run("whoami", "--profile", "work")).code == 0
    assert (await entrance.home.run("whoami")).code == 4


async def test_user_of_several_organizations_says_which(entrance: Entrance) -> None:
    for organization in ("one", "two"):
        body = {"name": organization, "ownerEmail": "c@x.example", "ownerId": CARL.sub}
        await entrance.served.service.operator.put(f"/api/v1/tenants/{organization}", body)
    assert (await entrance.sign_in("--organization", "one", user=CARL.sub)).code == 0
    for flags, expected in (([], "one"), (["--organization", "two"], "two")):
        done = await entrance.home.run("whoami", "--json", *flags)
        assert json.loads(done.out)["orgId"] == expected


async def test_user_without_an_organization_is_signed_in_and_told(entrance: Entrance) -> None:
    done = await entrance.sign_in(user=BOB.sub)
    assert done.code == 0
    assert "--organization ORG" in done.err
    assert (await entrance.home.run("whoami")).code == 4


async def test_denied_sign_in_keeps_nothing(entrance: Entrance) -> None:
    async with entrance.logging_in("--device") as command:
        await entrance.choose(await code_in(command), deny="yes")
        assert await command.wait() == 4
    assert "The sign-in was denied." in command.text["err"]
    assert not entrance.tokens.exists()


async def test_interrupted_sign_in_keeps_nothing(entrance: Entrance) -> None:
    async with entrance.home.running_process("login", "--device") as command:
        await command.until("Waiting ...", "err")
        assert await command.end(signal.SIGINT) == 1
    assert "Traceback" not in command.text["err"]
    assert not entrance.tokens.exists()


async def test_sign_in_that_nobody_answers_ends_in_time(entrance: Entrance) -> None:
    for way in ("--device", "--no-browser"):
        done = await entrance.home.run("login", way, "--timeout", "1")
        assert done.code == 4, done
    assert not entrance.tokens.exists()


async def test_token_that_the_service_refuses_is_not_kept(entrance: Entrance) -> None:
    done = await entrance.sign_in(user=EVE.sub)
    assert done.code == 4
    assert "Nothing was stored." in done.err
    assert not entrance.tokens.exists()


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--issuer", "http://login.example.com", "--client-id", "a"], 2, "must be https"),
        (["--issuer", "http://127.0.0.1:1", "--client-id", "a"], 6, "does not answer"),
        ([], 2, "--issuer and --client-id"),
    ],
)
async def test_where_to_sign_in_is_wrong_or_not_known(home: Home, flags: list[str], code: int, said: str) -> None:
    done = await home.run("login", "--base-url", "http://127.0.0.1:1", *flags)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


async def test_file_that_others_can_read_is_refused(entrance: Entrance) -> None:
    await entrance.sign_in()
    entrance.tokens.chmod(0o644)
    done = await entrance.home.run("whoami")
    assert done.code == 4
    assert "can be read by others" in done.err


async def test_file_that_is_broken_is_told(entrance: Entrance) -> None:
    await entrance.sign_in()
    for name in ("token.json", "session.json"):
        (entrance.tokens.parent / name).write_text("{")
        done = await entrance.home.run("whoami")
        assert done.code in {1, 4}
        assert "ign in again" in done.err
        assert "Traceback" not in done.err


async def test_tokens_may_be_in_the_keyring(entrance: Entrance) -> None:
    home = entrance.home
    path = with_keyring(home)
    assert (await entrance.sign_in(**path)).code == 0
    assert not entrance.tokens.exists()
    assert "refresh_token" in (home.folder / "keyring.json").read_text()
    assert (await home.run("whoami", **path)).code == 0
    assert (await home.run("logout", **path)).code == 0
    assert (home.folder / "keyring.json").read_text() == "{}"


async def test_keyring_that_is_not_there_is_told_before_anybody_signs_in(entrance: Entrance) -> None:
    config = entrance.home.folder / "config" / "tenantry" / "config.toml"
    config.write_text(config.read_text() + "keyring = true\n")
    done = await entrance.home.run("login", "--device")
    assert done.code == 1
    assert "pip install" in done.err
