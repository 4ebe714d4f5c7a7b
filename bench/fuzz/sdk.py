"""What the SDK and the commands read of any server."""

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bench.fuzz.target import Target, parts, require, text
from tenantry.domain.webhooks import signed_headers
from tenantry_cli.output import printable, printable_lines
from tenantry_sdk import ApiKey, Page, Principal, Project, Secret, Tenant, webhooks
from tenantry_sdk._response import Response, error_of, is_whole
from tenantry_sdk._retry import retry_after
from tenantry_sdk._secret import revealed
from tenantry_sdk._tokens import RefreshToken, as_token, endpoint_of, token_of
from tenantry_sdk._verify import ACCESS_HEADERS, PRINCIPAL_HEADERS, principal_of, verify_call
from tenantry_sdk.errors import (
    ConfigurationError,
    TokenRefreshError,
    UnreadableAnswerError,
)
from tests.support.webhook_endpoint import SECRET, endpoint_at

_NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
_KINDS: Final[tuple[Any, ...]] = (Any, ApiKey, Project, Tenant, Page[ApiKey])
_GRANT: Final = RefreshToken(
    issuer="https://issuer.example", client_id="cli", refresh_token=Secret("refresh-1")
)
_MAX_TEXT: Final = 16_384
_MOST_SIGNATURES: Final = 16
_TOLERANCE: Final = timedelta(seconds=300)
_EVENT: Final = b'{"id":"e","type":"tenant.created","orgId":"a","at":"2026-01-01T00:00:00Z","version":1,"data":{}}'


def check_answer(data: bytes) -> None:
    """Require that any answer becomes a record or an error of the SDK."""
    head, pause, content = parts(data, 3)
    status = 100 + int.from_bytes(head[:2]) % 500
    headers = {
        "retry-after": text(pause),
        "content-type": "application/json",
        "x-request-id": text(head),
    }
    seconds = retry_after(headers, _NOW)
    require(seconds is None or 0 <= seconds < 1e12, "an invalid Retry-After", seconds)
    error = error_of(Response(status, headers, content), seconds)
    require(len(str(error)) < _MAX_TEXT, "a long error", len(str(error)))
    response = Response(200, headers, content)
    is_whole(response)
    identity = dict.fromkeys(
        (*PRINCIPAL_HEADERS.values(), *ACCESS_HEADERS.values(), "x-features"), text(content)
    )
    with contextlib.suppress(UnreadableAnswerError):
        principal_of(Response(status, {**headers, **identity}, content), Principal)
    call = verify_call(
        [(b"Authorization", content), (b"X-Organization-Id", head), (b"X-API-Key", content)],
        None,
        None,
        "live",
        text(pause),
        "X-API-Key",
    )
    secrets = [call.authorization, *call.secret_headers.values()]
    sent = [*call.headers.values(), *(revealed(secret or "") for secret in secrets)]
    require(
        all(value.isascii() and value.isprintable() for value in sent),
        "a header that cannot be sent",
        sent,
    )
    for kind in _KINDS:
        with contextlib.suppress(UnreadableAnswerError):
            response.parse(kind)


def check_webhook(data: bytes) -> None:
    """Require that the SDK accepts what the service signed in the last 300 seconds, and nothing
    else; ``@`` is replaced by a valid signature.
    """
    offset, header, body = parts(data, 3)
    stamp = str(int(_NOW.timestamp()) + int.from_bytes(offset[:2], signed=True))
    at = datetime.fromtimestamp(int(stamp), UTC)
    sent = signed_headers(endpoint_at("https://app.example/"), "evt_1", at, body)
    given = text(header).replace("@", sent["webhook-signature"])
    headers = {**sent, "webhook-timestamp": stamp + text(offset[2:]), "webhook-signature": given}
    try:
        webhooks.unwrap(body, headers, SECRET, now=_NOW.timestamp())
        is_accepted = True
    except webhooks.SignatureError:
        is_accepted = False
    except webhooks.PayloadError:
        is_accepted = True
    values = given.split(" ")
    is_valid = (
        sent["webhook-signature"] in values
        and len(values) <= _MOST_SIGNATURES
        and headers["webhook-timestamp"] == stamp
        and abs(_NOW - at) <= _TOLERANCE
    )
    require(is_accepted is is_valid, "the service and the SDK disagree", headers, body)


def check_tokens(data: bytes) -> None:
    """Require that an identity provider's answers to the SDK and ``tenantry login`` raise only
    declared errors.
    """
    head, content = parts(data, 2)
    status = 200 if not head[:1].isdigit() else int(head[:1]) * 100
    answer = Response(status, {}, content)
    for read in (
        lambda: endpoint_of("https://issuer.example", answer),
        lambda: token_of(_GRANT, answer, 0.0, None),
        lambda: as_token(text(content), 0.0),
    ):
        with contextlib.suppress(TokenRefreshError, ConfigurationError):
            read()


def check_terminal(data: bytes) -> None:
    """Require that printed text contains no terminal control sequence."""
    shown = printable(text(data))
    require(shown.isprintable(), "a control sequence is printed", shown)
    require("\x1b" not in printable_lines(data.decode("latin-1")), "a control sequence is printed")


_DEEP: Final = b"[" * 3000 + b"]" * 3000
_KEY: Final = (
    b'{"id":"key_1","orgId":"a","name":"n","scopes":["a:b"],"accessLevel":"SCOPED","mode":"live","expiresAt":null,'
    b'"status":"active","start":"s","last4":"l","createdAt":"2026-01-01T00:00:00Z","createdBy":"u"}'
)

TARGETS: Final = (
    Target(
        name="sdk-answer",
        reads="an answer to the SDK, from any server",
        check=check_answer,
        seeds=lambda: [
            (
                b"\x01\x2d\n5\n"
                b'{"code": "not_found", "detail": "No.", "errors": [{"location": "a", "message": "b"}]}'
            ),
            b"\x00\x64\nThu, 01 Jan 2026 12:00:00 GMT\n" + _KEY,
            b"\x00\x64\n\n" + b'{"data": [' + _KEY + b'], "nextCursor": "c"}',
            b"\x01\x2d\nThu, 01 Jan 0001 00:00:00 +2359\n<html>\xff</html>",
            b"\x01\x2d\n9999999999999\n" + _DEEP,
        ],
        words=(
            b'"code"',
            b'"detail"',
            b'"errors"',
            b'"data"',
            b'"nextCursor"',
            b'"createdAt"',
            b"GMT",
            b"-9999",
        ),
        max_size=8192,
    ),
    Target(
        name="sdk-webhook",
        reads="headers and body of a webhook to the SDK, from any client; compared with the service",
        check=check_webhook,
        seeds=lambda: [
            b"\0\0\n@\n{}",
            b"\0\0\nv1,x @ v1a,y\n{}",
            b"\0\0\n@\n" + _EVENT,
            b"\1\x2c\n@\n{}",
            b"\1\x2d\n@\n{}",
            b"\xfe\xd3\n@\n{}",
            b"\0\0x\n@\n{}",
            b"\0\0\n" + b"@ " * 17 + b"\n{}",
            b"\0\0\n@\n" + _DEEP,
        ],
        words=(b"v1,", b"@", b" ", b"v1a,", b"\t", b'"type":', b'"data":', b'"at":', b"\xc2\xb2"),
        max_size=1024,
    ),
    Target(
        name="sdk-token",
        reads="discovery and token answers to the SDK, from the identity provider",
        check=check_tokens,
        seeds=lambda: [
            b'2\n{"access_token": "a", "expires_in": 60, "refresh_token": "r"}',
            b'2\n{"issuer": "https://issuer.example", "token_endpoint": "https://issuer.example/token"}',
            b'4\n{"error": "invalid_grant", "error_description": "No."}',
            b'2\n{"access_token": "\\u0000", "expires_in": 1e308}',
            b"2\n" + _DEEP,
            b"2\na.eyJleHAiOiAxfQ.c",
            b'2\n{"access_token": "a.' + b"W1tb" * 900 + b'.c"}',
        ],
        words=tuple(
            b'"access_token" "expires_in" "refresh_token" "error" 1e999 -1 W1tb eyJleHAi'.split()
        ),
        max_size=8192,
    ),
    Target(
        name="terminal",
        reads="text that commands print, from any server",
        check=check_terminal,
        seeds=lambda: ["a\x1b[2J\u202e\u2028\u200b\ud7ff\U000e0001".encode()],
        words=(b"\x1b[", b"\xc2\x9b", b"\xe2\x80\xae"),
        max_size=256,
    ),
)
