"""When the device flow polls again, and what a response means (RFC 8628, 3.5)."""

import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tenantry_cli.oauth_client import (
    IdentityProvider,
    ProviderResponse,
    next_interval,
    sign_in_with_code,
)
from tenantry_cli.output import NOT_AUTHENTICATED, CommandError
from tests.support.cases import cases


def error_response(error: str | None, status: int = 400) -> ProviderResponse:
    return ProviderResponse(status, b"" if error is None else msgspec.json.encode({"error": error}))


def test_pending_authorization_keeps_the_interval() -> None:
    assert next_interval(5, error_response("authorization_pending")) == 5


def test_slow_down_adds_five_seconds() -> None:
    assert next_interval(5, error_response("slow_down")) == 10


@cases(
    ("status", "error"),
    [
        (503, None),
        (503, "temporarily_unavailable"),
        (400, "temporarily_unavailable"),
        (500, "server_error"),
        (400, "server_error"),
        (502, "invalid_grant"),
        (429, None),
        (429, "too_many_requests"),
    ],
)
def test_temporary_error_doubles_the_interval(status: int, error: str | None) -> None:
    assert next_interval(5, error_response(error, status)) == 10


@pytest.mark.parametrize("error", ["slow_down", "server_error"])
def test_interval_is_a_minute_at_most(error: str) -> None:
    assert next_interval(59, error_response(error)) == 60


@cases("error", ["access_denied", "expired_token", "invalid_grant", "invalid_client"])
def test_denial_ends_it(error: str) -> None:
    with pytest.raises(CommandError) as caught:
        next_interval(5, error_response(error))
    assert caught.value.exit_code == NOT_AUTHENTICATED


class FakeTime:
    """A clock that only sleeping moves, and the sleeps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.sleeps = 0.0, list[float]()
        patch.setattr(time, "sleep", self._sleep)
        patch.setattr(time, "monotonic", lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps.append(seconds)


def sleeps_of(
    patch: pytest.MonkeyPatch, interval: float, *responses: ProviderResponse | None, lasts: float
) -> Any:
    """Poll until the code expires after these responses (None: no response); return the sleeps."""
    clock, waiting = FakeTime(patch), list(responses)

    def grant(_: object) -> ProviderResponse:
        response = waiting.pop(0) if waiting else error_response("authorization_pending")
        if response is None:
            raise CommandError("no response")
        return response

    device = {
        "device_code": "d",
        "user_code": "u",
        "verification_uri": "https://idp.example",
        "expires_in": lasts,
    }
    authorization = ProviderResponse(200, msgspec.json.encode({**device, "interval": interval}))
    provider = SimpleNamespace(
        metadata=SimpleNamespace(device_authorization_endpoint="https://idp.example/device"),
        client={},
        request=lambda *_: authorization,
        grant=grant,
        issuer="https://idp.example",
    )
    with pytest.raises(CommandError, match="expired"):
        sign_in_with_code(
            cast("IdentityProvider", provider),
            "openid",
            timeout=10**6,
            tell=lambda _: None,
            poll=1.0,
        )
    return clock.sleeps


@pytest.mark.parametrize("interval", [0, -1, 0.1])
def test_interval_has_a_minimum(monkeypatch: pytest.MonkeyPatch, interval: float) -> None:
    assert sleeps_of(monkeypatch, interval, lasts=3) == [1, 1, 1]


def test_slow_down_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down = error_response("slow_down")
    assert sleeps_of(monkeypatch, 5, slow_down, slow_down, lasts=46) == [5, 10, 15, 15, 1]


def test_provider_that_does_not_answer_is_polled_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sleeps_of(monkeypatch, 5, None, None, lasts=55) == [5, 10, 20, 20]
