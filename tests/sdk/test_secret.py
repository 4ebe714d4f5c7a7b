"""Secrets are not shown by accident."""

import base64
import copy
import io
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Final

import httpx2
import msgspec
import pytest
import rich.console
import rich.pretty

from tenantry_sdk import ClientCredentials, NewApiKey, RefreshToken, Secret, Tenantry, errors
from tenantry_sdk._response import Response
from tests.support.cases import cases

VALUE: Final = "svc_live_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"
OTHER: Final = "another-secret-0123456789"
RECORD: Final = (
    b'{"id": "key_1", "orgId": "acme", "name": "CI", "scopes": [], "accessLevel": "SCOPED", "mode": "live", '
    b'"expiresAt": null, "status": "active", "start": "svc_live_0123", "last4": "JKLM", '
    b'"createdAt": "2026-03-01T12:00:00Z", "createdBy": "key_0", "lastUsedAt": null, '
    b'"revokedAt": null, "rotatedFrom": null, "supersededBy": null, "secret": "%s"}'
    % VALUE.encode()
)


def made() -> NewApiKey:
    key: NewApiKey = Response(201, {}, RECORD).parse(NewApiKey)
    return key


@cases("show", [repr, str, "{}".format, "{!r}".format, "%s".__mod__])
def test_text_of_a_secret_does_not_hold_it(show: object) -> None:
    assert callable(show)
    assert VALUE not in show(Secret(VALUE))


def test_secret_can_be_revealed() -> None:
    assert made().secret.reveal() == VALUE


@cases("what", [made(), Response(201, {}, RECORD), Tenantry(VALUE)])
def test_repr_of_a_holder_does_not_show_the_secret(what: object) -> None:
    assert VALUE not in f"{what} {what!r}"


def test_log_line_does_not_hold_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("app").info("made %s with %r", made(), made().secret)
    assert "key_1" in caplog.text
    assert VALUE not in caplog.text


def failing(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.RemoteProtocolError(f"illegal: {request.content!r}")


def revealing() -> Iterator[Callable[[], object]]:
    """Calls that fail while they hold a secret."""
    http_client = httpx2.Client(transport=httpx2.MockTransport(failing))
    client = Tenantry(VALUE, http_client=http_client, retries=0)
    yield client.auth.whoami
    yield lambda: client.api_keys.report_leak(OTHER)
    key = made()
    yield lambda: client.api_keys.delete(key.id)
    for tokens in GRANTS:
        yield Tenantry(tokens=tokens, http_client=http_client, retries=0).auth.whoami


GRANTS: Final = (
    RefreshToken(
        issuer="https://x.example",
        client_id="c",
        refresh_token=OTHER,
        token_url="https://x.example/token",
    ),
    ClientCredentials(
        issuer="https://x.example",
        client_id="c",
        client_secret=OTHER,
        token_url="https://x.example/t",
    ),
)


@cases("call", [*revealing()])
def test_traceback_with_local_variables_holds_no_secret(call: Callable[[], object]) -> None:
    with pytest.raises(errors.TenantryError) as raised:
        call()
    shown = "".join(
        traceback.TracebackException.from_exception(raised.value, capture_locals=True).format()
    )
    assert "tenantry_sdk" in shown
    assert VALUE not in shown
    assert OTHER not in shown
    assert base64.b64encode(f"c:{OTHER}".encode()).decode() not in shown


@cases("what", [*GRANTS, made(), Response(201, {}, RECORD), Tenantry(VALUE)])
def test_rich_shows_no_secret(what: object) -> None:
    console = rich.console.Console(file=io.StringIO(), width=200)
    console.print(what, rich.pretty.Pretty(what))
    assert isinstance(console.file, io.StringIO)
    assert VALUE not in console.file.getvalue()
    assert OTHER not in console.file.getvalue()


def test_secret_is_not_written_out() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Secret(VALUE))
    with pytest.raises(TypeError):
        msgspec.json.encode(made())


def test_copies_of_a_key_keep_its_secret() -> None:
    key = made()
    assert copy.deepcopy(key).secret == copy.copy(key).secret == key.secret


def test_secrets_are_equal_by_value_and_unlike_text() -> None:
    assert Secret("a") == Secret("a")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a") != "a"
