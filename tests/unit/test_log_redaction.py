"""Nothing that looks like a credential reaches a log line, nor any secret of the deployment, nor a forged line."""

import base64
import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, quote_plus

import pytest

from tenantry.common.logs import ConsoleFormatter, JsonFormatter, Redactor, redact
from tenantry.common.secret import Secret
from tenantry.domain.access import Mode
from tenantry.domain.api_keys import compose_secret

KEY: Final = compose_secret(Mode.LIVE, bytes(range(32)))
HEAD: Final = "eyJhbGciOiJSUzI1NiJ9"
TOKEN: Final = f"{HEAD}.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJl"
WEBHOOK_SECRET: Final = "whsec_0123456789abcdef/+="
FORMATTERS: Final = {"console": ConsoleFormatter, "json": JsonFormatter}

CREDENTIALS: Final = {
    "live key": KEY,
    "test key": compose_secret(Mode.TEST, bytes(range(32))),
    "beginning of a key": KEY[:29],
    "key that is too long": KEY + "AAAA",
    "key of a mode to come": KEY.replace("live", "sandbox"),
    "token": TOKEN,
    "token without signature": TOKEN.rpartition(".")[0] + ".",
    "beginning of a token": f"{HEAD}.eyJzd",
    "first part of a token": f"{HEAD}",
    "encrypted token": f"{HEAD}.a.b.c.d",
    "token whose header has spaces": base64.urlsafe_b64encode(b'{ "alg": "RS256" }').decode().rstrip("=") + ".e30.c2ln",
    "webhook secret": WEBHOOK_SECRET,
    "provider key": "sk_live_0123456789abcdef",
    "restricted provider key": "rk_test_0123456789abcdef",
    "provider key of no mode": "sk_0123456789abcdef0123456789abcdef",
}
HEADERS: Final = {
    "as sent": "Authorization: Bearer {}",
    "in lower case": "authorization: bearer {}",
    "without a scheme": "Authorization: {}",
    "as Basic": "Authorization: Basic {}",
    "as a proxy's": "Proxy-Authorization: Bearer {}",
    "as another scheme": 'Authorization: Digest response="{}"',
    "in a dictionary": "{{'host': 'a', 'authorization': 'Bearer {}', 'accept': '*/*'}}",
    "as bytes": "[(b'authorization', b'Bearer {}'), (b'accept', b'*/*')]",
    "in JSON": '{{"Authorization": "Bearer {}", "accept": "*/*"}}',
    "in JSON in JSON": '"{{\\"Authorization\\": \\"Bearer {}\\"}}"',
    "percent-encoded": "header=Authorization%3A%20Bearer%20{}",
    "scheme alone": "sent Bearer {} to them",
    "another header": "X-Api-Key: {}",
    "a cookie": "Cookie: session={}",
    "a client's secret": "grant_type=x&client_secret={}&scope=y",
    "a refresh token": '{{"refresh_token": "{}", "expires_in": 3600}}',
    "a database's password": "host=db.example password={} user=app",
}
OPAQUE: Final = "Zx9-opaque~1"


@pytest.mark.parametrize("name", CREDENTIALS)
def test_credential_is_masked(name: str) -> None:
    shown = redact(f"sent '{CREDENTIALS[name]}', refused")
    assert shown == "sent '[redacted]', refused"


@pytest.mark.parametrize(
    "encoded", [quote_plus, lambda text: quote(quote(text)), lambda text: text.replace("_", "%5f")]
)
def test_percent_encoded_credential_is_masked(encoded: Callable[[str], str]) -> None:
    for name, credential in CREDENTIALS.items():
        assert redact(f"GET /?q={encoded(credential)}&b=1") == "GET /?q=[redacted]&b=1", name


@pytest.mark.parametrize("escaped", [lambda text: text.replace("_", "\\u005f"), lambda text: text.replace("/", "\\/")])
def test_escaped_credential_is_masked(escaped: Callable[[str], str]) -> None:
    for name, credential in CREDENTIALS.items():
        assert redact(f'{{"a": "{escaped(credential)}"}}') == '{"a": "[redacted]"}', name


@pytest.mark.parametrize("name", HEADERS)
def test_credential_of_any_shape_is_masked_where_it_is_called_one(name: str) -> None:
    shown = redact(HEADERS[name].format(OPAQUE))
    assert OPAQUE not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("client_secret%3Dabcdefgh", "client_secret%3D[redacted]"),
        ("GET /?next=%3Faccess_token%253Dabc%2526x%253D1&b=2", "GET /?next=%3Faccess_token%253D[redacted]&b=2"),
        ("%22password%22%3A%22hunter22%22%7D", "%22password%22%3A%22[redacted]%22%7D"),
        ("%5C%22id%5Ftoken%5C%22%3A+%5C%22a+b%5C%22%7D", "%5C%22id%5Ftoken%5C%22%3A+%5C%22[redacted]%5C%22%7D"),
        ("%22authorization%22%3A%22Token hunter22%22%7D", "%22authorization%22%3A%22[redacted]%22%7D"),
        ("x%22Bearer%20abcdef%22", "x%22Bearer%20[redacted]"),
        ("client_secret\\u003dabcdefgh&x=1", "client_secret\\u003d[redacted]&x=1"),
        ('{\\"id_token\\": \\"abc def\\", \\"x\\": 1}', '{\\"id_token\\": \\"[redacted]\\", \\"x\\": 1}'),
        ("operator_token=abcdef123 then", "operator_token=[redacted] then"),
        ("SESSION_SECRET: abcdef123 then", "SESSION_SECRET: [redacted] then"),
        ("password='a b c' host=d", "password='[redacted]' host=d"),
        ("{'refresh_token': 'abc def', 'x': 1}", "{'refresh_token': '[redacted]', 'x': 1}"),
        ("{'password': b'abc def', 'x': 1}", "{'password': b'[redacted]', 'x': 1}"),
        ("{'password': ['abc def'], 'x': 1}", "{'password': ['[redacted]'], 'x': 1}"),
        ('{"password": "a\\"b c", "x": 1}', '{"password": "[redacted]", "x": 1}'),
        ("password='never ended", "password='[redacted]"),
        ("password=a\\b host=d", "password=[redacted] host=d"),
    ],
)  # fmt: skip
def test_value_is_masked_to_its_end_however_it_is_written(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Basic"])
@pytest.mark.parametrize("credential", ["abcdefghijklmnop", "dTpw", "token-of-mine", "abc.def.ghi", "tokenabcdef"])
def test_whatever_follows_a_scheme_is_masked(scheme: str, credential: str) -> None:
    assert redact(f"sent {scheme} {credential} to them") == f"sent {scheme} [redacted] to them"


@pytest.mark.parametrize(
    "credentials",
    ["me:hunter2hunter2", ":hunter2hunter2", "me:p%40ss", "u:p/w", "u:p@w", "u:p@w@x", "u:p/w@x", "u:5432", "u:1a/b"],
)  # fmt: skip
@pytest.mark.parametrize(
    "written", [str, lambda text: text.replace("/", "\\/"), quote_plus, lambda text: quote(quote_plus(text))]
)
def test_user_and_password_in_an_address_are_masked(credentials: str, written: Callable[[str], str]) -> None:
    for rest in ("/a", ":25/a@b", ""):
        before, after = written("smtp://"), written(f"@mail.example{rest}")
        shown = redact(f"{before}{written(credentials)}{after} refused")
        assert shown == f"{before}[redacted]{after} refused"


@pytest.mark.parametrize(
    "text",
    [
        "svc_live_",
        "svc_live_003a...F9PE",
        "GET /api/v1/projects",
        "https://id.example/jwks",
        "a@b.example",
        "bearer tokens are not accepted here",
        "Bearer tokens are not accepted here: no identity provider is set up.",
        "The bearer token is not valid.",
        "The bearer token has expired.",
        "Send a credential: Authorization: Bearer <API key or token>.",
        'Bearer realm="api", error="invalid_token", error_description="The bearer token has expired."',
        "invalid_token: the token has expired",
        "Basic Constraints of CA cert not marked critical",
        "plan basic expires, plan basic -> pro",
        "OPERATOR_TOKEN: is shorter than 32 characters",
        "PROVIDER_WEBHOOK_SECRET: holds an empty secret",
        "operator_token, access_token and id_token",
        "http://127.0.0.1:8080/mails/a@b.example",
        "http://[::1]:8080/mails/a@b.example",
        "GET /?next=http%3A%2F%2F127.0.0.1%3A8080%2Fmails%2Fa%40b.example",
        "the Authorization header must be: Bearer <API key or token>.",
        "basic checks passed",
        "risk_assessment_of_everything, task_with_a_very_long_name_indeed",
        "networkflows and newoperationsofmanykinds",
        "tenantry_gateways_identity_tokens.verify_signature_of_token.something_else_entirely",
        "mail 7a6ee0e6-30c5-4a4b-a3c9-4b0f4a0f9a57 of tenant acme, attempt 2",
        "the mail server refused the user or password (535)",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redact(text) == text


OWN: Final = {
    "pepper": "a pepper of many words, ~32 long",
    "operator token": "operator-token-0123456789abcdef-xyz",
    "password": 'p/w "quoted" \\ 50% + ümlaut',
}


@pytest.mark.parametrize(
    "form",
    [str, quote, quote_plus, lambda text: quote(text, safe=""), json.dumps, repr,
     lambda text: json.dumps(text, ensure_ascii=False), lambda text: json.dumps(text).replace("/", "\\/")],
)  # fmt: skip
@pytest.mark.parametrize("name", OWN)
def test_own_secret_is_masked_whatever_it_looks_like(name: str, form: Callable[[str], str]) -> None:
    redacted = Redactor([Secret(secret) for secret in OWN.values()])
    shown = redacted(f"a {form(OWN[name])} z")
    assert shown.replace('"', "").replace("'", "") == "a [redacted] z"


def test_secret_that_begins_like_another_leaves_nothing_of_it() -> None:
    redacted = Redactor([Secret("abcdef"), Secret("abcdefghijkl")])
    assert redacted("abcdefghijkl abcdef") == "[redacted] [redacted]"


def test_secret_of_few_letters_does_not_blot_out_the_log() -> None:
    assert Redactor([Secret(""), Secret("a")])("a database") == "a database"


def logged(
    formatter: logging.Formatter, message: object, *arguments: object, error: BaseException | None = None
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
    line = logged(FORMATTERS[name](), "a key %s in %r", KEY, {"Authorization": f"Bearer {OPAQUE}"})
    assert KEY not in line
    assert OPAQUE not in line
    assert line.count("[redacted]") == 2


@pytest.mark.parametrize("name", FORMATTERS)
def test_exceptions_their_causes_and_notes_are_masked(name: str) -> None:
    error = raised(RuntimeError(f"with {KEY}"), raised(ValueError(f"from {TOKEN}")))
    error.add_note(f"and {WEBHOOK_SECRET}")
    line = logged(FORMATTERS[name](), "failed", error=error)
    assert "RuntimeError" in line
    assert "ValueError" in line
    assert not [secret for secret in (KEY, TOKEN, WEBHOOK_SECRET) if secret in line or json.dumps(secret)[1:-1] in line]


@pytest.mark.parametrize("name", FORMATTERS)
def test_own_secrets_are_masked_in_lines(name: str) -> None:
    redacted = Redactor([Secret(secret) for secret in OWN.values()])
    error = raised(RuntimeError(OWN["password"]))
    line = logged(FORMATTERS[name](redacted), "with %s", OWN["pepper"], error=error)
    assert not [form for secret in OWN.values() for form in (secret, json.dumps(secret)[1:-1]) if form in line]


@pytest.mark.parametrize("name", FORMATTERS)
def test_line_that_does_not_fit_its_arguments_shows_none(name: str) -> None:
    line = logged(FORMATTERS[name](), "%d of %d", KEY)
    assert "%d of %d" in line
    assert KEY not in line


BREAKS: Final = ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("separator", BREAKS)
@pytest.mark.parametrize("name", FORMATTERS)
def test_value_cannot_forge_a_line(name: str, separator: str) -> None:
    line = logged(FORMATTERS[name](), "refused: %s", f"a{separator}12:00:00 ERROR   root  forged")
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("separator", BREAKS)
@pytest.mark.parametrize("name", FORMATTERS)
def test_exception_cannot_forge_a_line(name: str, separator: str) -> None:
    error = raised(RuntimeError(f"a{separator}12:00:00 ERROR   root  forged"))
    first, *rest = logged(FORMATTERS[name](), "failed", error=error).splitlines()
    assert "failed" in first
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("name", FORMATTERS)
def test_value_cannot_command_a_terminal(name: str) -> None:
    assert logged(FORMATTERS[name](), "a %s", "\x1b[2J\x9b31m\u202e\x7f").isprintable() is False  # its own line end
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


SAID: Final = (
    "a warning",
    "in a loop",
    "in a thread",
    "in a destructor",
    "by uvicorn.error:",
    "by procrastinate.worker:",
    "uncaught",
)


@pytest.mark.parametrize("name", FORMATTERS)
def test_everything_that_a_process_of_the_service_says_is_masked(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    for what in SAID:
        assert f"{what} [redacted] [redacted]" in done.stderr
    assert KEY not in done.stderr
    assert "the-own-secret" not in done.stderr
    if name == "json":
        assert all(json.loads(line)["level"] for line in done.stderr.splitlines())


def test_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "hunter2" not in shown
