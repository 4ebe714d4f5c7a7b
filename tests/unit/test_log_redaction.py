"""No credential with a known prefix, no secret of the deployment and no forged line reaches the
log.
"""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, quote_plus

import pytest

from tenantry.common.logs import ConsoleFormatter, JsonFormatter, Redactor
from tenantry.common.redaction import redact
from tenantry.common.secret import Secret
from tenantry.domain.api_keys import DEFAULT_FORMAT, KeyFormat
from tenantry.domain.permissions import Mode
from tests.support.cases import cases

KEY: Final = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(range(32)))
OTHER_KEY: Final = KeyFormat("acme0123456789ab").compose(Mode.TEST, bytes(range(32)))
HEAD: Final = "eyJhbGciOiJSUzI1NiJ9"
TOKEN: Final = f"{HEAD}.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJl"
WEBHOOK_SECRET: Final = "whsec_0123456789abcdef/+="
FORMATTERS: Final = {"console": ConsoleFormatter, "json": JsonFormatter}

CREDENTIALS: Final = {
    "live key": KEY,
    "test key": DEFAULT_FORMAT.compose(Mode.TEST, bytes(range(32))),
    "truncated key": KEY[:29],
    "key that is too long": KEY + "AAAA",
    "key of another mode": KEY.replace("live", "sandbox"),
    "key with another prefix": OTHER_KEY,
    "truncated key with another prefix": OTHER_KEY[:42],
    "token": TOKEN,
    "token without signature": TOKEN.rpartition(".")[0] + ".",
    "truncated token": f"{HEAD}.eyJzd",
    "first part of a token": f"{HEAD}",
    "encrypted token": f"{HEAD}.a.b.c.d",
    "webhook secret": WEBHOOK_SECRET,
    "provider key": "sk_live_0123456789abcdef",
    "restricted provider key": "rk_test_0123456789abcdef",
    "provider key without a mode": "sk_0123456789abcdef0123456789abcdef",
}


@cases("name", CREDENTIALS)
def test_credential_is_masked(name: str) -> None:
    shown = redact(f"sent '{CREDENTIALS[name]}', rejected")
    assert shown == "sent '[redacted]', rejected"


@cases("name", CREDENTIALS)
def test_percent_encoded_credential_is_masked(name: str) -> None:
    assert redact(f"GET /?q={quote_plus(CREDENTIALS[name])}&b=1") == "GET /?q=[redacted]&b=1"


@cases("credentials", ["me:hunter2", ":hunter2", "me:p%40ss", "u:p@w", "u:p@w@x", "u:5432"])
@cases("rest", ["", "/a", ":25/a@b"])
def test_user_and_password_in_a_url_are_masked(credentials: str, rest: str) -> None:
    shown = redact(f"smtp://{credentials}@mail.example{rest} failed")
    assert shown == f"smtp://[redacted]@mail.example{rest} failed"


@cases(
    "text",
    [
        "svc_live_",
        "svc_live_003a...F9PE",
        "acme_live_003a...F9PE",
        "module_test_of_the_whole_thing, load_test_0123456789",
        "GET /api/v1/projects",
        "https://id.example/jwks",
        "a@b.example",
        "Send a credential: Authorization: Bearer <API key or token>.",
        "http://127.0.0.1:8080/mails/a@b.example",
        "http://[::1]:8080/mails/a@b.example",
        "risk_assessment_of_everything, task_with_a_very_long_name_indeed",
        "tenantry_gateways_identity_tokens.verify_signature_of_token.something_else_entirely",
        "mail 7a6ee0e6-30c5-4a4b-a3c9-4b0f4a0f9a57 of tenant acme, attempt 2",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redact(text) == text


OWN: Final = {
    "pepper": "a pepper of many words, ~32 long",
    "operator token": "operator-token-0123456789abcdef-xyz",
    "password": 'p/w "quoted" \\ 50% + ümlaut',
}


@cases(
    "form",
    [
        str,
        quote,
        quote_plus,
        lambda text: quote(text, safe=""),
        json.dumps,
        repr,
        lambda text: json.dumps(text, ensure_ascii=False),
    ],
)
@cases("name", OWN)
def test_secret_of_the_deployment_is_masked_in_every_form(
    name: str, form: Callable[[str], str]
) -> None:
    redacted = Redactor([Secret(secret) for secret in OWN.values()])
    shown = redacted(f"a {form(OWN[name])} z")
    assert shown.replace('"', "").replace("'", "") == "a [redacted] z"


def test_secret_that_begins_with_another_is_masked_completely() -> None:
    redacted = Redactor([Secret("abcdef"), Secret("abcdefghijkl")])
    assert redacted("abcdefghijkl abcdef") == "[redacted] [redacted]"


def test_short_secret_does_not_mask_words() -> None:
    assert Redactor([Secret(""), Secret("a")])("a database") == "a database"


def logged(
    formatter: logging.Formatter,
    message: object,
    *arguments: object,
    error: BaseException | None = None,
) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    trouble = (type(error), error, error.__traceback__) if error else None
    handler.emit(logging.LogRecord("x", logging.ERROR, "x.py", 1, message, arguments, trouble))
    return stream.getvalue()


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("name", FORMATTERS)
def test_messages_and_arguments_are_masked(name: str) -> None:
    line = logged(FORMATTERS[name](), "a key %s in %r", KEY, {"Authorization": f"Bearer {TOKEN}"})
    assert KEY not in line
    assert TOKEN not in line
    assert line.count("[redacted]") == 2


@pytest.mark.parametrize("name", FORMATTERS)
def test_exceptions_their_causes_and_notes_are_masked(name: str) -> None:
    error = raised(RuntimeError(f"with {KEY}"), raised(ValueError(f"from {TOKEN}")))
    error.add_note(f"and {WEBHOOK_SECRET}")
    line = logged(FORMATTERS[name](), "failed", error=error)
    assert "RuntimeError" in line
    assert "ValueError" in line
    assert not [
        secret
        for secret in (KEY, TOKEN, WEBHOOK_SECRET)
        if secret in line or json.dumps(secret)[1:-1] in line
    ]


@pytest.mark.parametrize("name", FORMATTERS)
def test_secrets_of_the_deployment_are_masked_in_lines(name: str) -> None:
    redacted = Redactor([Secret(secret) for secret in OWN.values()])
    error = raised(RuntimeError(OWN["password"]))
    line = logged(FORMATTERS[name](redacted), "with %s", OWN["pepper"], error=error)
    assert not [
        form
        for secret in OWN.values()
        for form in (secret, json.dumps(secret)[1:-1])
        if form in line
    ]


@pytest.mark.parametrize("name", FORMATTERS)
def test_message_with_wrong_arguments_shows_none_of_them(name: str) -> None:
    line = logged(FORMATTERS[name](), "%d of %d", KEY)
    assert "%d of %d" in line
    assert KEY not in line


BREAKS: Final = ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]


@cases("separator", BREAKS)
@cases("name", FORMATTERS)
def test_value_cannot_forge_a_line(name: str, separator: str) -> None:
    line = logged(FORMATTERS[name](), "refused: %s", f"a{separator}12:00:00 ERROR   root  forged")
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1


@cases("separator", BREAKS)
@cases("name", FORMATTERS)
def test_exception_cannot_forge_a_line(name: str, separator: str) -> None:
    error = raised(RuntimeError(f"a{separator}12:00:00 ERROR   root  forged"))
    first, *rest = logged(FORMATTERS[name](), "failed", error=error).splitlines()
    assert "failed" in first
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("name", FORMATTERS)
def test_value_cannot_control_a_terminal(name: str) -> None:
    # its own line end
    assert logged(FORMATTERS[name](), "a %s", "\x1b[2J\x9b31m\u202e\x7f").isprintable() is False
    assert logged(FORMATTERS[name](), "a %s", "\x1b[2J\x9b31m\u202e\x7f").rstrip("\n").isprintable()


def test_json_line_is_one_object() -> None:
    line = logged(JsonFormatter(), "two\nlines \u2028 \x85 ü", error=raised(ValueError("x")))
    assert line.count("\n") == 1
    assert json.loads(line).keys() == {"time", "level", "logger", "message", "exception"}
    assert json.loads(line)["message"] == "two\nlines \u2028 \x85 ü"
    assert json.loads(line)["time"].endswith("Z")


PROCESS: Final = f"""
import asyncio, gc, logging, sys, threading, warnings
from tenantry.common import logs
from tenantry.common.secret import Secret
logs.configure_service(sys.argv[1], [Secret("the-own-secret")])
KEY = {KEY!r} + " the-own-secret"

class Ghost:
    def __del__(self):
        raise RuntimeError("in a destructor " + KEY)

def of_loop():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0 if KEY else None)
        asyncio.get_running_loop().call_exception_handler({{"message": "in a loop " + KEY}})
        await asyncio.sleep(0)
    asyncio.run(main())

def raising(message):
    raise RuntimeError(message)

warnings.warn("a warning " + KEY)
of_loop()
thread = threading.Thread(target=raising, args=("in a thread " + KEY,))
thread.start()
thread.join()
Ghost()
gc.collect()
for name in ("uvicorn.error", "procrastinate.worker"):
    logging.getLogger(name).warning("by %s: %s", name, KEY)
logging.getLogger("x").info("%d", KEY)
raising("uncaught " + KEY)
"""


MESSAGES: Final = (
    "a warning",
    "in a loop",
    "in a thread",
    "in a destructor",
    "by uvicorn.error:",
    "by procrastinate.worker:",
    "uncaught",
)


@pytest.mark.parametrize("name", FORMATTERS)
def test_all_output_of_a_service_process_is_masked(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    for what in MESSAGES:
        assert f"{what} [redacted] [redacted]" in done.stderr
    assert KEY not in done.stderr
    assert "the-own-secret" not in done.stderr
    if name == "json":
        assert all(json.loads(line)["level"] for line in done.stderr.splitlines())


def test_secret_is_shown_only_by_reveal() -> None:
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "hunter2" not in shown
