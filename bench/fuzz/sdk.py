"""What the SDK and the commands read: answers of any server, and files."""

import contextlib
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.fuzz.target import Target, parts, require, text
from tenantry.cli.client_configuration import read_config
from tenantry.cli.output import CommandError, printable, printable_lines
from tenantry.cli.sign_in_storage import SignInStorage
from tenantry_sdk import ApiKey, FileStore, Page, Project, Secret, Tenant
from tenantry_sdk._response import Response, is_whole
from tenantry_sdk._retry import retry_after
from tenantry_sdk._secret import revealed
from tenantry_sdk._tokens import RefreshToken, as_token, endpoint_of, token_of
from tenantry_sdk._verify import PRINCIPAL_HEADERS, principal_of, verify_call
from tenantry_sdk.errors import (
    ConfigurationError,
    TokenRefreshError,
    UnreadableAnswerError,
    error_of,
)

_NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
_KINDS: Final[tuple[Any, ...]] = (Any, ApiKey, Project, Tenant, Page[ApiKey])
_GRANT: Final = RefreshToken(
    issuer="https://issuer.example", client_id="cli", refresh_token=Secret("refresh-1")
)
_MAX_TEXT: Final = 16_384


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
    error = error_of(status, headers, content, seconds)
    require(len(str(error)) < _MAX_TEXT, "a long error", len(str(error)))
    response = Response(200, headers, content)
    is_whole(response)
    identity = dict.fromkeys((*PRINCIPAL_HEADERS.values(), "x-features"), text(content))
    with contextlib.suppress(UnreadableAnswerError):
        principal_of(Response(status, {**headers, **identity}, content))
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


def check_tokens(data: bytes) -> None:
    """Require that an identity provider's answers to the SDK and ``tenantry login`` raise only
    declared errors.
    """
    head, content = parts(data, 2)
    status = 200 if not head[:1].isdigit() else int(head[:1]) * 100
    for read in (
        lambda: endpoint_of("https://issuer.example", "token_endpoint", status, content),
        lambda: token_of(_GRANT, status, content, 0.0, None),
        lambda: as_token(text(content), 0.0),
    ):
        with contextlib.suppress(TokenRefreshError, ConfigurationError):
            read()


_folder: Final = tempfile.TemporaryDirectory(prefix="tenantry-fuzz-")


def check_files(data: bytes) -> None:
    """Require that configuration, session and token files raise only declared errors."""
    folder = Path(_folder.name)
    path = folder / "config.toml"
    path.write_bytes(data)
    with contextlib.suppress(CommandError):
        read_config(path)
    session = folder / "default" / "session.json"
    session.parent.mkdir(exist_ok=True)
    session.write_bytes(data)
    SignInStorage(folder, "default").load()
    token = folder / "token.json"
    token.touch(mode=0o600)
    token.write_bytes(data)
    with contextlib.suppress(ConfigurationError):
        FileStore(token).load()


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
        name="command-files",
        reads="the files of the commands, from their user",
        check=check_files,
        seeds=lambda: [
            b'profile = "a"\n[profiles.a]\nbase_url = "https://a.example"\nkeyring = true\n',
            b'{"base_url": "https://a", "issuer": "https://i", "client_id": "c"}',
            b'{"access_token": "a", "expires_at": 1.5, "refresh_token": null}',
            b"a = " + b"[" * 1500,
            b"a = " + b"9" * 5000,
            b'{"access_token": "\xff"}',
            _DEEP,
        ],
        words=(
            b"profile",
            b"[profiles.",
            b"[[",
            b"]]",
            b'"""',
            b"base_url",
            b"1979-05-27",
            b'"access_token"',
            b"0x",
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
