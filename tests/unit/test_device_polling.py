"""When a device asks for its token, and what the answers mean (RFC 8628, 3.5)."""

import pytest

from tenantry.cli.api_client import Waits
from tenantry.cli.exit_codes import NOT_AUTHENTICATED, CommandError
from tenantry.cli.sign_in_flows import EXPIRED, Polling
from tenantry.cli.sign_in_provider import Answer

GOOD = Answer(200, {"access_token": "a", "token_type": "bearer", "expires_in": 60, "refresh_token": "r"})


def begin(interval: float, ends: float, over: str = EXPIRED) -> Polling:
    """The polling of a command, which waits as long as users' commands do."""
    return Polling(interval, ends, over, Waits().poll)


def refused(error: str) -> Answer:
    return Answer(400, {"error": error})


def test_it_waits_the_interval_while_nothing_is_decided() -> None:
    polling = begin(5, ends=100)
    assert polling.after(refused("authorization_pending")) is None
    assert polling.wait(0) == 5


def test_slow_down_adds_five_seconds_for_good() -> None:
    polling = begin(5, ends=100)
    for expected in (10, 15):
        assert polling.after(refused("slow_down")) is None
        assert polling.wait(0) == expected


def test_provider_in_trouble_is_asked_more_and_more_rarely() -> None:
    polling = begin(5, ends=1000)
    assert polling.after(Answer(503, {})) is None
    polling.lost()
    assert polling.wait(0) == 20
    for _ in range(9):
        polling.lost()
    assert polling.wait(0) == 60


@pytest.mark.parametrize(
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
def test_trouble_is_no_refusal(status: int, error: str | None) -> None:
    polling = begin(5, ends=1000)
    assert polling.after(Answer(status, {} if error is None else {"error": error})) is None
    assert polling.wait(0) == 10


@pytest.mark.parametrize("interval", [0, -1, 0.1])
def test_it_never_asks_without_a_pause(interval: float) -> None:
    assert begin(interval, ends=100).wait(0) == 1


def test_it_asks_once_though_the_end_comes_first() -> None:
    polling = begin(5, ends=4, over="Nobody came.")
    assert polling.wait(0) == 4
    with pytest.raises(CommandError, match="Nobody came") as caught:
        polling.wait(4)
    assert caught.value.code == NOT_AUTHENTICATED


def test_it_ends_when_the_code_expires() -> None:
    polling = begin(5, ends=100)
    assert polling.wait(94) == 5
    with pytest.raises(CommandError, match="expired"):
        polling.wait(95)


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant", "invalid_client"])
def test_it_ends_when_it_is_refused(error: str) -> None:
    with pytest.raises(CommandError) as caught:
        begin(5, ends=100).after(refused(error))
    assert caught.value.code == NOT_AUTHENTICATED


def test_it_ends_with_the_tokens() -> None:
    token = begin(5, ends=100).after(GOOD)
    assert token is not None
    assert (token.access_token.reveal(), token.lifetime) == ("a", 60)
    assert token.refresh_token is not None
    assert token.refresh_token.reveal() == "r"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, {}),
        Answer(200, {"access_token": "a", "token_type": "mac"}),
        Answer(200, {"access_token": 1, "token_type": "Bearer"}),
        Answer(302, GOOD.fields),
    ],
)
def test_what_is_no_token_is_not_taken_for_one(answer: Answer) -> None:
    with pytest.raises(CommandError):
        begin(5, ends=100).after(answer)
