"""Sign-in with a code, the stored tokens, and sign-out."""

import json
import signal

import pytest

from tests.cli.command_support import Home
from tests.cli.fake_provider import signed_in
from tests.cli.sign_in_support import CARL, EVE, SignInHome, browser_client, code_in, with_keyring
from tests.support.ports import free_port
from tests.support.sign_in import ADA, BOB, CLIENT_ID


async def test_sign_in_with_a_code_replaces_the_key(sign_in_home: SignInHome) -> None:
    async with sign_in_home.start_login("--device") as command:
        await sign_in_home.choose(await code_in(command), user=ADA.sub)
        done = await command.done()
    assert (done.code, done.out) == (0, "")
    assert f"Signed in to {sign_in_home.served.url} as {ADA.sub} of org_demo.\n" in done.err
    who = json.loads((await sign_in_home.home.run("whoami", "--json")).out)
    assert (who["id"], who["orgId"], who["credential"]) == (ADA.sub, "org_demo", "tenantry login")
    made = await sign_in_home.home.run("projects", "create", "--name", "a")
    assert made.code == 0, made.err


async def test_tokens_are_readable_by_their_owner_only_and_in_no_output(
    sign_in_home: SignInHome,
) -> None:
    done = await sign_in_home.sign_in("--json")
    assert json.loads(done.out)["whoami"]["id"] == ADA.sub
    folder = sign_in_home.tokens.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    shown = await sign_in_home.home.run("whoami")
    for secret in (
        sign_in_home.stored_tokens["access_token"],
        sign_in_home.stored_tokens["refresh_token"],
    ):
        assert secret not in done.out + done.err + shown.out + shown.err


async def test_expired_token_is_refreshed_by_the_next_command(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    before = sign_in_home.stored_tokens
    sign_in_home.expire()
    assert (await sign_in_home.home.run("whoami")).code == 0
    assert sign_in_home.stored_tokens["refresh_token"] != before["refresh_token"]
    assert (await sign_in_home.home.run("whoami")).code == 0


async def test_sign_in_that_was_revoked_elsewhere_is_reported(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    async with browser_client() as client:
        form = {"token": sign_in_home.stored_tokens["refresh_token"], "client_id": CLIENT_ID}
        assert (
            await client.post(f"{sign_in_home.companion.issuer}/revoke", data=form)
        ).status_code == 200
    sign_in_home.expire()
    done = await sign_in_home.home.run("whoami")
    assert done.code == 4
    assert "Your sign-in has ended." in done.err
    assert "tenantry login" in done.err


async def test_sign_out_revokes_the_refresh_token_and_removes_the_tokens(
    sign_in_home: SignInHome,
) -> None:
    await sign_in_home.sign_in()
    refresh_token = sign_in_home.stored_tokens["refresh_token"]
    done = await sign_in_home.home.run("logout")
    assert (done.code, done.err) == (0, f"Signed out of {sign_in_home.served.url}.\n")
    assert not any(path.stat().st_size for path in sign_in_home.tokens.parent.iterdir())
    async with browser_client() as client:
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "client_id": CLIENT_ID,
        }
        assert (await client.post(f"{sign_in_home.companion.issuer}/token", data=form)).json()[
            "error"
        ] == "invalid_grant"
    assert (await sign_in_home.home.run("whoami")).code == 4
    assert (await sign_in_home.home.run("logout")).err == "You are not signed in.\n"


async def test_sign_out_without_the_identity_provider_removes_the_tokens(
    sign_in_home: SignInHome,
) -> None:
    signed_in(
        sign_in_home.home, sign_in_home.served.url, f"http://127.0.0.1:{free_port()}", ends_in=60
    )
    done = await sign_in_home.home.run("logout")
    assert done.code == 6
    assert done.err.startswith("Removed here, but not revoked at the identity provider.")
    assert not sign_in_home.tokens.exists()


async def test_sign_in_is_only_for_its_service(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    other = f"http://127.0.0.1:{free_port()}"
    done = await sign_in_home.home.run("whoami", TENANTRY_BASE_URL=other)
    assert done.code == 4
    assert (
        f"You are signed in to {sign_in_home.served.url}; that sign-in is only for that service."
        in done.err
    )


async def test_key_of_the_environment_takes_precedence_over_the_sign_in(
    sign_in_home: SignInHome,
) -> None:
    await sign_in_home.sign_in()
    made = await sign_in_home.home.run("keys", "create", "--name", "a", "--scope", "a:b", "--json")
    key = json.loads(made.out)
    assert key["id"] in (await sign_in_home.home.run("whoami", TENANTRY_API_KEY=key["secret"])).out


async def test_each_profile_has_its_own_sign_in(sign_in_home: SignInHome) -> None:
    flags = [
        "--base-url",
        sign_in_home.served.url,
        "--issuer",
        sign_in_home.companion.issuer,
        "--client-id",
        CLIENT_ID,
    ]
    assert (await sign_in_home.sign_in("--profile", "work", *flags)).code == 0
    assert (await sign_in_home.home.run("whoami", "--profile", "work")).code == 0
    assert (await sign_in_home.home.run("whoami")).code == 4


async def test_user_of_several_organizations_names_one(sign_in_home: SignInHome) -> None:
    for organization in ("one", "two"):
        body = {"name": organization, "ownerEmail": "c@x.example", "ownerId": CARL.sub}
        await sign_in_home.served.service.operator.put(f"/api/v1/tenants/{organization}", body)
    assert (await sign_in_home.sign_in("--org", "one", user=CARL.sub)).code == 0
    for flags, expected in (([], "one"), (["--org", "two"], "two")):
        done = await sign_in_home.home.run("whoami", "--json", *flags)
        assert json.loads(done.out)["orgId"] == expected


async def test_user_without_an_organization_is_signed_in_with_a_note(
    sign_in_home: SignInHome,
) -> None:
    done = await sign_in_home.sign_in(user=BOB.sub)
    assert done.code == 0
    assert "--org ORG" in done.err
    assert (await sign_in_home.home.run("whoami")).code == 4


async def test_denied_sign_in_stores_nothing(sign_in_home: SignInHome) -> None:
    async with sign_in_home.start_login("--device") as command:
        await sign_in_home.choose(await code_in(command), deny="yes")
        assert await command.wait() == 4
    assert "The sign-in was denied." in command.text["err"]
    assert not sign_in_home.tokens.exists()


async def test_interrupted_sign_in_stores_nothing(sign_in_home: SignInHome) -> None:
    async with sign_in_home.home.running_process("login", "--device") as command:
        await command.until("Waiting ...", "err")
        assert await command.end(signal.SIGINT) == 1
    assert "Traceback" not in command.text["err"]
    assert not sign_in_home.tokens.exists()


async def test_incomplete_sign_in_times_out(sign_in_home: SignInHome) -> None:
    for way in ("--device", "--no-browser"):
        done = await sign_in_home.home.run("login", way, "--timeout", "1")
        assert done.code == 4, done
    assert not sign_in_home.tokens.exists()


async def test_token_that_the_service_rejects_is_not_stored(sign_in_home: SignInHome) -> None:
    done = await sign_in_home.sign_in(user=EVE.sub)
    assert done.code == 4
    assert "Nothing was stored." in done.err
    assert not sign_in_home.tokens.exists()


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--issuer", "http://login.example.com", "--client-id", "a"], 2, "must be https"),
        (["--issuer", "http://127.0.0.1:1", "--client-id", "a"], 6, "does not answer"),
        ([], 2, "--issuer and --client-id"),
    ],
)
async def test_wrong_or_unknown_identity_provider_is_reported(
    home: Home, flags: list[str], code: int, said: str
) -> None:
    done = await home.run("login", "--base-url", "http://127.0.0.1:1", *flags)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


async def test_file_that_others_can_read_is_rejected(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    sign_in_home.tokens.chmod(0o644)
    done = await sign_in_home.home.run("whoami")
    assert done.code == 4
    assert "can be read by others" in done.err


async def test_malformed_file_is_reported(sign_in_home: SignInHome) -> None:
    await sign_in_home.sign_in()
    for name in ("token.json", "session.json"):
        (sign_in_home.tokens.parent / name).write_text("{")
        done = await sign_in_home.home.run("whoami")
        assert done.code in {1, 4}
        assert "ign in" in done.err
        assert "Traceback" not in done.err


async def test_tokens_may_be_in_the_keyring(sign_in_home: SignInHome) -> None:
    home = sign_in_home.home
    path = with_keyring(home)
    assert (await sign_in_home.sign_in(**path)).code == 0
    assert not sign_in_home.tokens.exists()
    assert "refresh_token" in (home.folder / "keyring.json").read_text()
    assert (await home.run("whoami", **path)).code == 0
    assert (await home.run("logout", **path)).code == 0
    assert (home.folder / "keyring.json").read_text() == "{}"


async def test_missing_keyring_is_reported_before_the_sign_in(sign_in_home: SignInHome) -> None:
    config = sign_in_home.home.folder / "config" / "tenantry" / "config.toml"
    config.write_text(config.read_text() + "keyring = true\n")
    done = await sign_in_home.home.run("login", "--device")
    assert done.code == 1
    assert "pip install" in done.err
