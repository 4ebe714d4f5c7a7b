"""Sign-in with a failing identity provider, service or network."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cli.command_support import Home, create_demo
from tests.cli.fake_provider import (
    CLIENT,
    CODE,
    DISCOVERY,
    GOOD,
    REVOKE,
    TOKEN,
    WHOAMI,
    FakeProvider,
    Reply,
    fake_provider,
    proxy,
    signed_in,
)
from tests.cli.sign_in_support import SignInHome
from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.support.command_runner import QUICK
from tests.support.ports import free_port

WHO: dict[str, Any] = {
    "kind": "user",
    "id": "\x1b[2Jmallory",
    "orgId": "o",
    "mode": "live",
    "scopes": [],
    "accessLevel": "OWNER",
    "plan": "free",
    "subscriptionStatus": "none",
    "access": {
        "state": "none",
        "plan": "free",
        "until": None,
        "reason": "There is no subscription.",
    },
    "expiresAt": None,
}


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    """An identity provider, and a service that rejects its tokens."""
    async with fake_provider() as running:
        yield running


def is_stored(home: Home) -> bool:
    """Return whether the folder holds a sign-in."""
    return any(path.stat().st_size for path in (home.token_folder / "default").iterdir())


async def test_code_is_shown_with_the_shorter_of_lifetime_and_timeout(
    home: Home, provider: FakeProvider
) -> None:
    provider.answer(TOKEN, Reply(400, {"error": "access_denied"}))
    done = await home.run("login", "--device", "--timeout", "90", *provider.flags())
    assert "It is good for 1 min. Waiting ..." in done.err
    assert "The sign-in was denied." in done.err


@pytest.mark.parametrize(
    ("expires_in", "patience", "said"),
    [
        (600, "1", "The code was not entered within 1 s."),
        (1, "60", "The code expired before it was entered."),
    ],
)
async def test_token_endpoint_is_polled_at_least_once(
    home: Home, provider: FakeProvider, expires_in: float, patience: str, said: str
) -> None:
    provider.answer(CODE, Reply(200, provider.code(interval=5, expires_in=expires_in)))
    provider.answer(TOKEN, Reply(400, {"error": "authorization_pending"}))
    done = await home.run("login", "--device", "--timeout", patience, *provider.flags())
    assert done.code == 4
    assert said in done.err
    assert len(provider.forms_at(TOKEN)) == 1


async def test_temporary_error_is_retried(home: Home, provider: FakeProvider) -> None:
    provider.answer(TOKEN, Reply(503, {"error": "temporarily_unavailable"}), Reply(200, GOOD))
    provider.answer(WHOAMI, Reply(200, WHO))
    done = await home.run("login", "--device", *provider.flags())
    assert done.code == 0, done
    assert is_stored(home)


async def test_control_characters_in_responses_are_replaced(
    home: Home, provider: FakeProvider
) -> None:
    provider.answer(WHOAMI, Reply(200, WHO))
    done = await home.run("login", "--device", *provider.flags())
    assert done.code == 0, done
    assert "mallory of o." in done.err
    assert "\x1b" not in done.err
    provider.answer(WHOAMI, Reply(403, {"code": "no_organization", "detail": "a\x1b[31mb"}))
    done = await home.run("login", "--device", *provider.flags())
    assert "31mb" in done.err
    assert "\x1b" not in done.err


@pytest.mark.parametrize(
    "path", ["/a\x1b[2J", "/a b", "/\N{RIGHT-TO-LEFT OVERRIDE}a", "/a\nOpen https://evil.example"]
)
async def test_malformed_endpoint_is_not_shown(
    home: Home, provider: FakeProvider, path: str
) -> None:
    provider.described = {"authorization_endpoint": f"{provider.url}{path}"}
    done = await home.run("login", "--no-browser", "--timeout", "1", *provider.flags())
    assert done.code == 1
    assert "authorization_endpoint" in done.err
    assert f"{path}?" not in done.err


async def test_token_that_the_service_rejects_is_revoked(
    home: Home, provider: FakeProvider
) -> None:
    done = await home.run("login", "--device", *provider.flags())
    assert done.code == 4
    assert "Nothing was stored." in done.err
    assert not is_stored(home)
    assert [form["token"] for form in provider.forms_at(REVOKE)] == ["refresh-1"]


async def test_token_with_invalid_characters_is_not_stored(
    home: Home, provider: FakeProvider
) -> None:
    provider.answer(TOKEN, Reply(200, {**GOOD, "access_token": "an access token"}))
    done = await home.run("login", "--device", *provider.flags())
    assert done.code == 4
    assert "has invalid characters" in done.err
    assert not is_stored(home)


async def test_sign_in_is_stored_while_the_service_is_unreachable(
    home: Home, provider: FakeProvider
) -> None:
    done = await home.run(
        "login", "--device", "--json", *provider.flags(f"http://127.0.0.1:{free_port()}")
    )
    assert done.code == 0
    document = json.loads(done.out)
    assert document["whoami"] is None
    assert "There was no answer." in document["doubt"]
    assert is_stored(home)


async def test_endless_response_times_out(home: Home, provider: FakeProvider) -> None:
    failures = iter([Failure.SLOW_HEAD, Failure.SLOW_BODY])
    async with faulty_proxy(provider.url, lambda: next(failures)) as (address, _):
        flags = ["--base-url", address, "--issuer", address, "--client-id", "a"]
        impatient = QUICK._replace(provider=0.3)
        done = await home.run_with(impatient, "login", "--device", "--timeout", "1", *flags)
        assert done.code == 6
        assert "does not answer" in done.err
        signed_in(home, address, address, ends_in=60)
        done = await home.run_with(impatient, "logout")
        assert done.code == 6
        assert "does not answer" in done.err


async def test_only_requests_to_this_machine_bypass_proxies(
    sign_in_home: SignInHome, provider: FakeProvider
) -> None:
    async with proxy() as (values, asked):
        assert (await sign_in_home.sign_in(**values)).code == 0
        sign_in_home.expire()
        assert (await sign_in_home.home.run("whoami", **values)).code == 0
        assert asked == set()
        provider.described = {"token_endpoint": "https://login.example.com/token"}
        done = await sign_in_home.home.run(
            "login", "--device", "--timeout", "1", *provider.flags(), **values
        )
        assert done.code == 4
        assert {asked.path for asked in provider.asked} == {DISCOVERY, CODE}
        assert asked == {"CONNECT login.example.com:443"}


async def test_refresh_on_this_machine_bypasses_proxies(home: Home, provider: FakeProvider) -> None:
    async with proxy() as (values, asked):
        signed_in(home, "https://accounts.example.com", provider.url, ends_in=-1)
        await home.run("whoami", **values)
    assert len(provider.forms_at(TOKEN)) == 1
    assert asked == {"CONNECT accounts.example.com:443"}


async def test_refresh_elsewhere_uses_the_proxy(home: Home, provider: FakeProvider) -> None:
    async with proxy() as (values, asked):
        signed_in(home, provider.url, "https://login.example.com", ends_in=-1)
        done = await home.run("whoami", **values)
    assert done.code == 6
    assert asked == {"CONNECT login.example.com:443"}
    assert provider.asked == []


async def test_provider_of_a_demo_folder_must_stay_on_this_machine(
    home: Home, provider: FakeProvider
) -> None:
    provider.described["token_endpoint"] = "https://evil.example/token"
    create_demo(home, provider.url, OIDC_ISSUER=provider.url, OIDC_CLIENT_ID=CLIENT)
    done = await home.run("login", "--device")
    assert done.code == 1
    assert "is on this machine, but its token_endpoint is not" in done.err
    assert provider.forms_at(CODE) == []


async def test_issuer_of_a_named_profile_takes_precedence_over_the_environment(
    home: Home, provider: FakeProvider
) -> None:
    home.configure(
        f'[profiles.prod]\nbase_url = "{provider.url}"\nissuer = "{provider.url}"\nclient_id = "{CLIENT}"\n'
    )
    values = {"TENANTRY_ISSUER": f"http://127.0.0.1:{free_port()}", "TENANTRY_CLIENT_ID": "another"}
    # the service's refusal
    assert (await home.run("login", "--device", "--profile", "prod", **values)).code == 4
    assert {form["client_id"] for form in provider.forms_at(CODE)} == {CLIENT}
    assert (await home.run("login", "--device", "--base-url", provider.url, **values)).code == 6
