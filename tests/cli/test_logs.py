"""``tenantry logs tail``."""

import json
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.command_support import DEMO_KEY, Home, create_demo
from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, Done

WEBHOOK: Final = "/api/v1/webhooks/payment-provider"


def line(number: int, **fields: Any) -> str:
    """A line of the request log."""
    known = {
        "time": f"2020-11-26T08:34:{number:02}Z",
        "level": "info",
        "logger": "tenantry.requests",
        "message": "",
        "method": "GET",
        "route": "/api/v1/projects",
        "status": 200,
        "request_id": f"request-{number}",
        "tenant": "acme",
        "principal": "api_key",
        "outcome": "ok",
        "duration_ms": 12.3,
    }
    return json.dumps({**known, **fields}) + "\n"


def event(number: int, **fields: Any) -> str:
    about = {
        "event": f"evt_{number}",
        "event_type": "invoice.paid",
        "outcome": "applied",
        "principal": "none",
    }
    return line(number, **{"method": "POST", "route": WEBHOOK, **about, **fields})


MIXED: Final = (
    line(1),
    line(2, tenant="other", status=404, outcome="not_found"),
    event(3),
    event(4, tenant=None, status=503, outcome="unavailable"),
)


async def tail(
    home: Home, *arguments: str, log: str | None = "".join(MIXED), **values: str
) -> Done:
    path = home.folder / "requests.log"
    if log is not None:
        path.write_text(log)
    return await home.run("logs", "tail", str(path), "--no-follow", *arguments, **values)


async def shown(home: Home, *arguments: str) -> list[int]:
    """The numbers of the lines that are shown."""
    done = await tail(home, "--json", *arguments)
    assert (done.code, done.err) == (0, "")
    return [int(json.loads(one)["request_id"].partition("-")[2]) for one in done.out.splitlines()]


async def test_requests_and_events_are_shown(home: Home) -> None:
    assert await tail(home, TZ="UTC") == Done(
        0,
        "08:34:01  200     12 ms  GET     /api/v1/projects  acme  api_key  request-1\n"
        "08:34:02  404     12 ms  GET     /api/v1/projects  not_found  other  api_key  request-2\n"
        "08:34:03  200     12 ms  invoice.paid  evt_3  applied  acme  request-3\n"
        "08:34:04  503     12 ms  invoice.paid  evt_4  unavailable  request-4\n",
        "",
    )


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ("--tenant acme", [1, 3]),
        ("--tenant acme --tenant other", [1, 2, 3]),
        ("--status 404", [2]),
        ("--status 4XX,503", [2, 4]),
        ("--status 200 --status 5xx", [1, 3, 4]),
        ("--status error", [2, 4]),
        ("--only events", [3, 4]),
        ("--only requests --tenant acme", [1]),
        ("--lines 1", [4]),
        ("--lines 1 --tenant acme", [3]),
        ("--lines 0", []),
        ("--since 2020-11-26T08:34:03Z", [3, 4]),
        ("--since 2020-11-26T08:34:02Z --lines 1", [4]),
    ],
)
async def test_lines_are_filtered(home: Home, options: str, numbers: list[int]) -> None:
    assert await shown(home, *options.split()) == numbers


@pytest.mark.parametrize(
    "options", ["--status 6xx", "--status ok", "--status ''", "--status 40²", "--tenant a/b"]
)
async def test_faulty_filter_is_a_usage_error(home: Home, options: str) -> None:
    assert (await tail(home, *options.split())).code == 2


async def test_lines_that_are_no_requests_are_left_out(home: Home) -> None:
    others = (
        "tenantry is ready\n",
        "{\n",
        '{"logger": "tenantry.requests"}\n',
        "\n",
        "null\n",
        "\x00\xff\n",
        line(1, logger="tenantry.other", message="tenantry.requests"),
        line(2, status="200"),
        "[" * 100_000 + "\n",
        line(3, method="x" * 200_000)[:-3],
    )
    done = await tail(
        home, "--json", log="".join((*others[:-1], "service-1  | ", line(4), others[-1]))
    )
    assert (done.code, [json.loads(one)["request_id"] for one in done.out.splitlines()]) == (
        0,
        ["request-4"],
    )


async def test_log_without_requests_gets_a_hint(home: Home) -> None:
    done = await tail(home, log="08:00:00 INFO tenantry.app  started\n" * 100)
    assert (done.code, done.out) == (0, "")
    assert done.err.count("LOG_REQUESTS=true and LOG_FORMAT=json") == 1


async def test_secrets_and_control_characters_are_not_shown(home: Home) -> None:
    log = line(1, tenant=DEMO_KEY, route="/\x1b[31m\u202e", principal="https://user:password@host")
    for options in ((), ("--json",)):
        done = await tail(home, *options, log=log)
        assert done.code == 0
        assert "[redacted]" in done.out
        for hidden in (DEMO_KEY, "password", "\x1b", "\u202e"):
            assert hidden not in done.out


async def test_log_is_found_by_the_setting_or_the_demo(home: Home) -> None:
    create_demo(home, "http://127.0.0.1:1")
    (home.folder / ".tenantry" / "requests.log").write_text(line(1))
    (home.folder / "other.log").write_text(line(2))
    arguments = ("logs", "tail", "--no-follow")
    assert "request-1" in (await home.run(*arguments)).out
    assert "request-2" in (await home.run(*arguments, LOG_REQUESTS_TO="other.log")).out


async def test_log_that_is_missing_is_a_usage_error(home: Home) -> None:
    done = await home.run("logs", "tail")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("There is no request log: name its FILE, or set LOG_REQUESTS_TO")
    done = await home.run("logs", "tail", "missing.log")
    assert done == Done(
        2, "", "The request log does not exist: missing.log. Start the service first.\n"
    )


async def test_standard_input_is_followed_to_its_end(home: Home) -> None:
    done = await invoke_async(
        "logs",
        "tail",
        "-",
        "--json",
        folder=home.folder,
        given="".join(MIXED).rstrip("\n"),
        **home.values,
    )
    assert (done.code, done.err, len(done.out.splitlines())) == (0, "", 4)


@pytest.mark.thorough
async def test_file_is_followed_over_rotation_truncation_and_restart(home: Home) -> None:
    path, rotated = home.folder / "requests.log", home.folder / "requests.log.1"
    path.write_text(line(1))
    async with home.running_process("logs", "tail", path.name, "--json") as command:
        await command.until("request-1", "out")
        with path.open("a") as log:
            log.write(line(2)[:30])
            log.flush()
            log.write(line(2)[30:])
        await command.until("request-2", "out")
        path.rename(rotated)
        with rotated.open("a") as log:  # the service writes on until it notices
            log.write(line(3))
        path.write_text(line(4, route="/" * 100))
        await command.until("request-4", "out")
        path.write_text("")
        with path.open("a") as log:
            log.write(line(5))
        await command.until("request-5", "out")
        path.unlink()
        path.write_text(line(6))
        await command.until("request-6", "out")
        assert await command.end(signal.SIGINT) == 0
    assert command.text["err"] == ""
    assert [json.loads(one)["request_id"] for one in command.text["out"].splitlines()] == [
        f"request-{number}" for number in range(1, 7)
    ]


async def test_service_says_that_the_log_cannot_be_opened(home: Home) -> None:
    values = {**SECRETS, "DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    done = await home.run("serve", LOG_REQUESTS_TO=str(Path("missing") / "requests.log"), **values)
    assert done == Done(
        1, "", "LOG_REQUESTS_TO: missing/requests.log cannot be opened: No such file or directory\n"
    )
