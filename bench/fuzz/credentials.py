"""Keys, cursors, cookies and other short texts from clients."""

import base64
import re
import zlib
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final, cast

from bench.fuzz.target import Target, parts, require, require_storable, text
from tenantry.auth.authentication import requested_organization
from tenantry.auth.credentials import CredentialFinder
from tenantry.common.clock import system_clock
from tenantry.common.redaction import redact
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.sign_in import safe_path
from tenantry.db.pagination import Position, decode_cursor, encode_cursor, window_after
from tenantry.domain.api_keys import DEFAULT_FORMAT, KeyFormat, Pepper
from tenantry.domain.errors import DomainError, InvalidCursorError
from tenantry.domain.imported_keys import read_key_pattern
from tenantry.domain.permissions import Mode
from tenantry.domain.sessions import SessionSecret
from tenantry.integrations.oidc.sign_in import PendingSignIn
from tenantry.server.asgi_types import request_id_of

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEY_FORM: Final = re.compile(rb"(?:svc|acme|x0)_(?:live|test)_[0-9A-Za-z]{49}")
_FORMAT: Final = KeyFormat("acme", ["x0"])
KEY: Final = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(range(32)))


def checksummed(body: bytes) -> bytes:
    """Append a key's checksum, computed independently of the service."""
    number, digits = zlib.crc32(body), ""
    while number:
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return body + digits.rjust(6, "0").encode()


def check_key(data: bytes) -> None:
    """Require that form and checksum decide; ``@`` is replaced by the checksum of the bytes before
    it.
    """
    body, mark, rest = data.partition(b"@")
    given = checksummed(body) + rest if mark else data
    by_reference = _KEY_FORM.fullmatch(given) is not None and checksummed(given[:-6]) == given
    require(
        _FORMAT.is_well_formed(given) is by_reference,
        "the service and the reference disagree about a key",
        given,
    )


def check_cursor(data: bytes) -> None:
    """Require that any text is rejected as declared or decodes to a position that encodes to an
    equal one.
    """
    given = text(data)
    try:
        position = decode_cursor(given)
    except InvalidCursorError:
        return
    require_storable(position)
    require(
        decode_cursor(encode_cursor(position)) == position,
        "a cursor decodes to another position",
        position,
    )
    try:
        window_after(1, given)
    except InvalidCursorError:
        return


def check_cursor_content(data: bytes) -> None:
    """Check the same for encoded bytes."""
    check_cursor(base64.urlsafe_b64encode(data).rstrip(b"="))


_secret: Final = SessionSecret("session-secret-of-the-fuzzer-0123456789")
_cookies: Final = Cookies(_secret, system_clock, secure=True)
_begun: Final = PendingSignIn("state-of-the-fuzzer-0123456789", "nonce", "verifier", silent=False)
_SEALED: Final = _cookies.with_sign_in(_begun, "/orgs/acme", timedelta(minutes=10))


def check_cookies(data: bytes) -> None:
    """Require that only the service's own cookies are accepted."""
    state, session, sealed = (part.decode("latin-1") for part in parts(data, 3))
    name = _SEALED.key
    stand_in = SimpleNamespace(
        cookies={
            name: sealed,
            "__Host-tenantry_session": session,
            f"__Secure-tenantry_secret_{state}": sealed,
        }
    )
    request = cast("Any", stand_in)
    pending = _cookies.sign_in(request, state if name.endswith(state[:12]) else _begun.state)
    require(pending is None or pending.begun == _begun, "a forged cookie is accepted", sealed)
    _cookies.without_old_sign_ins(request)
    shown = _cookies.secret(request, cast("Any", SimpleNamespace(digest=bytes(32))), state)
    require(shown is None, "a forged cookie of a new key's secret is accepted", sealed)
    require(_secret.digest(session) is None, "a forged session is accepted", session)


_pepper: Final = Pepper(b"pepper")
_finder: Final = CredentialFinder(
    api_key_header="X-API-Key", imported=read_key_pattern(r"[\w-]+\.[\w-]+|old_[0-9a-f]{32}")
)


def check_headers(data: bytes) -> None:
    """Require that short headers raise only declared errors, and that no secret passes as another
    value.
    """
    authorization, organization, request_id, path = parts(data, 4)
    for sent in ((authorization, None), (None, authorization), (authorization, organization)):
        try:
            credential = _finder.find(*sent).value
            _finder.digests(credential, [_pepper])
        except DomainError as error:
            require_no_echo(error, authorization)
            continue
        given = authorization or organization
        require(credential in given, "the credential is not part of the header", given)
    try:
        requested_organization(text(organization), organization or None)
    except DomainError as error:
        require_no_echo(error, organization)
    named = request_id_of(request_id or None).decode("ascii")
    require(
        re.fullmatch(r"[A-Za-z0-9._-]{1,128}", named), "a request id with unsafe characters", named
    )
    safe = safe_path(text(path))
    require(
        re.fullmatch(r"/(?![/\\])[!-~ ]*", safe) and "\\" not in safe,
        "a path that may leave the site",
        safe,
    )


def require_no_echo(error: DomainError, sent: bytes) -> None:
    """Require that no error repeats what was sent, except short words."""
    require(
        len(sent) < 12 or text(sent) not in error.detail,
        "an error repeats what was sent",
        error.detail,
    )


def check_redaction(data: bytes) -> None:
    """Require that no key survives in a log line; ``@`` is replaced by a key."""
    given = text(data)
    line = redact(given.replace("@", f" {KEY} "))
    require(KEY not in line, "a key is in the log", line)


TARGETS: Final = (
    Target(
        name="api-key",
        reads="the text of a key, from any client; compared with another implementation",
        check=check_key,
        seeds=lambda: [
            KEY.encode(),
            KEY[:-6].encode() + b"@",
            b"svc_test_" + b"0" * 43 + b"@",
            b"acme_live_" + b"0" * 43 + b"@",
            b"svc_live_\xff@x",
        ],
        words=(b"svc_live_", b"svc_test_", b"acme_live_", b"x0_test_", b"@", b"0" * 43),
        max_size=128,
    ),
    Target(
        name="cursor",
        reads="a cursor, from any client",
        check=check_cursor,
        seeds=lambda: [
            encode_cursor(Position(n, name)).encode()
            for n, name in ((0, ""), (2**61, "key_1"), (-5, "é"))
        ],
        words=(b"==", b"-", b"_", b"+", b"/"),
        max_size=1100,
    ),
    Target(
        name="cursor-content",
        reads="the content of a cursor, from any client",
        check=check_cursor_content,
        seeds=lambda: [
            b"\x92\x01\xa1a",
            b"\x92\xcf" + b"\xff" * 8 + b"\xa0",
            b"\x91\x01",
            b"\x93\x01\xa0\xa0",
            b"\x92\xd3" + b"\x80" + b"\0" * 7 + b"\xa1a",
        ],
        max_size=750,
    ),
    Target(
        name="cookies",
        reads="the cookies of a session, a pending sign-in and a new key's secret, from any client",
        check=check_cookies,
        seeds=lambda: [
            f"state-of-the-fuzzer\n{_secret.token(bytes(32))[:-4]}\n{_SEALED.value}".encode(),
            *(
                b"s\n\n" + base64.urlsafe_b64encode(header).rstrip(b"=") + rest
                for header, rest in (
                    (b'{"alg":[],"enc":"A256GCM"}', b"..a.a.a"),
                    (b'{"alg":"dir","enc":{}}', b"..a.a.a"),
                    (b"[" * 1500 + b"]" * 1500, b"..a.a.a"),
                    (b'{"alg":"dir","enc":"A128CBC-HS256","zip":"DEF"}', b"..YWE.YWE.YWE"),
                )
            ),
        ],
        words=(b".", b"..", b"eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIn0", b"eyJhbGciOltdfQ"),
    ),
    Target(
        name="headers",
        reads="Authorization, X-Organization-Id, X-Request-Id and a return path, from any client",
        check=check_headers,
        seeds=lambda: [
            b"Bearer " + KEY.encode() + b"\nacme\nreq-1\n/orgs/acme?a=b#c",
            b"bearer \xff\n\xff\nsvc_live_1\n//evil.example",
            b"Basic a\n\neyJ\n/\\evil.example",
            b"Api-Key svc_live_1\nsvc_live_2\n\n/",
        ],
        words=(b"Bearer ", b"bearer", b"//", b"/\\", b"svc_", b"eyJ", b"%2f"),
        max_size=1024,
    ),
    Target(
        name="log-line",
        reads="a log line with text from any client",
        check=check_redaction,
        seeds=lambda: [
            b"Authorization: Bearer @",
            b'{"authorization": "Bearer @", "password": "x\\"@"}',
            b"postgresql://user:p@ss@host/db whsec_abcdefgh sk_live_abcdefgh eyJhbGciOiJFZERTQSJ9.e30.AAAA",
            b"%2f%2fuser%3apass%40host api%5Fkey cookie=a",
        ],
        words=(b"bearer ", *rb"""@ // %25 %2f%2f \u002f password= " \ eyJ svc_ :""".split()),
        max_size=2048,
    ),
)
