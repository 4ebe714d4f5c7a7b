"""Secrets are not shown by accident."""

import copy
import logging
import pickle
import traceback
from typing import Final

import msgspec
import pytest

from tenantry_sdk import NewApiKey, Secret, Tenantry
from tenantry_sdk._request import Response

VALUE: Final = "svc_live_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"
RECORD: Final = (
    b'{"id": "key_1", "orgId": "acme", "name": "CI", "scopes": [], "accessLevel": "SCOPED", "mode": "live", '
    b'"expiresAt": null, "status": "active", "start": "svc_live_0123", "last4": "JKLM", '
    b'"createdAt": "2026-03-01T12:00:00Z", "createdBy": "key_0", "secret": "%s"}' % VALUE.encode()
)


def made() -> NewApiKey:
    key: NewApiKey = Response(201, {}, RECORD).parse(NewApiKey)
    return key


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{!r}".format, "%s".__mod__])
def test_text_of_a_secret_does_not_hold_it(show: object) -> None:
    assert callable(show)
    assert VALUE not in show(Secret(VALUE))


def test_secret_is_there_when_asked_for() -> None:
    assert made().secret.reveal() == VALUE


@pytest.mark.parametrize("what", [made(), Response(201, {}, RECORD), Tenantry(VALUE)])
def test_text_of_what_holds_a_secret_does_not_show_it(what: object) -> None:
    assert VALUE not in f"{what} {what!r}"


def test_log_line_does_not_hold_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("app").info("made %s with %r", made(), made().secret)
    assert "key_1" in caplog.text
    assert VALUE not in caplog.text


def test_traceback_with_local_variables_does_not_hold_it() -> None:
    key = made()
    try:
        raise RuntimeError(key.id)
    except RuntimeError as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert "key_1" in "".join(shown.format())
    assert VALUE not in "".join(shown.format())


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
