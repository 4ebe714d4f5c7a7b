"""Nothing that looks like a credential reaches a log line."""

import io
import json
import logging
import sys

import pytest

from tenantry.domain.access import Mode
from tenantry.domain.api_keys import compose_secret
from tenantry.kit.logs import ConsoleFormatter, JsonFormatter, redact
from tenantry.kit.secret import Secret

KEY = compose_secret(Mode.LIVE, bytes(range(32)))
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJl"

CREDENTIALS = {
    "live key": KEY,
    "test key": compose_secret(Mode.TEST, bytes(range(32))),
    "token": TOKEN,
    "token without signature": TOKEN.rpartition(".")[0] + ".",
    "webhook secret": "whsec_0123456789abcdef/+=",
    "provider key": "sk_live_0123456789abcdef",
    "restricted provider key": "rk_test_0123456789abcdef",
    "user and password in an address": "me:hunter2hunter2",
    "password alone in an address": ":hunter2hunter2",
}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_credential_is_masked(name: str) -> None:
    text = f"smtp://{CREDENTIALS[name]}@mail.example" if "address" in name else f"sent '{CREDENTIALS[name]}', refused"
    shown = redact(text)
    assert CREDENTIALS[name] not in shown
    assert "[redacted]" in shown
    assert shown.endswith(("@mail.example", "', refused"))


@pytest.mark.parametrize("text", ["svc_live_", "GET /api/v1/projects", "https://id.example/jwks", "a@b.example"])
def test_what_is_no_credential_stays(text: str) -> None:
    assert redact(text) == text


def logged(formatter: logging.Formatter, message: str, *arguments: object) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    try:
        raise RuntimeError(f"with {KEY}")
    except RuntimeError:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, message, arguments, sys.exc_info())
    handler.emit(record)
    return stream.getvalue()


@pytest.mark.parametrize("formatter", [ConsoleFormatter(), JsonFormatter()])
def test_messages_arguments_and_tracebacks_are_masked(formatter: logging.Formatter) -> None:
    line = logged(formatter, "a key %s", KEY)
    assert KEY not in line
    assert "RuntimeError" in line


def test_json_line_is_one_object() -> None:
    line = logged(JsonFormatter(), "two\nlines")
    assert line.count("\n") == 1
    assert json.loads(line).keys() == {"time", "level", "logger", "message", "exception"}
    assert json.loads(line)["time"].endswith("Z")


def test_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "hunter2" not in shown
