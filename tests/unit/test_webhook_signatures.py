"""The signatures of webhooks, as the libraries see them that receivers use."""

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import standardwebhooks.webhooks
import svix.webhooks

from tenantry.common.secret import Secret
from tenantry.domain.outbound_events import TypeFilter
from tenantry.domain.webhooks import WebhookEndpoint, signed_headers

Library = Callable[[str], Any]
LIBRARIES: Final = [
    pytest.param(standardwebhooks.webhooks.Webhook, id="standardwebhooks"),
    pytest.param(svix.webhooks.Webhook, id="svix"),
]
SECRETS: Final = [
    "whsec_" + base64.b64encode(bytes(range(start, start + length))).decode()
    for start, length in ((0, 24), (7, 25), (100, 32), (190, 64))
]
"""Of the lengths that are allowed, with all characters of base64."""
BODIES: Final = [
    b"{}",
    b'{"type":"tenant.updated","data":{"name":"\xc3\x9cn\xc3\xafcode \xf0\x9f\x94\x91"}}',
]
ID: Final = "evt_1795843200000123"
NOW: Final = datetime(2026, 11, 28, 9, 45, 10, 999_999, UTC)


def headers(secrets: list[str], body: bytes, now: datetime) -> dict[str, str]:
    signers = tuple(map(Secret, secrets))
    endpoint = WebhookEndpoint("crm", "https://crm.example", TypeFilter(), signers)
    return signed_headers(endpoint, ID, now, body)


def accepts(library: Library, secret: str, body: bytes, sent: Mapping[str, str]) -> bool:
    try:
        library(secret).verify(body, dict(sent))
    except standardwebhooks.webhooks.WebhookVerificationError:
        return False
    return True


@pytest.mark.parametrize("library", LIBRARIES)
def test_signature_is_that_of_the_library(library: Library) -> None:
    for secret in SECRETS:
        for body in BODIES:
            theirs = library(secret).sign(ID, NOW, body.decode())
            ours = headers([secret], body, NOW)
            assert ours["webhook-signature"] == theirs, (secret, body)
            assert ours["webhook-timestamp"] == str(int(NOW.timestamp()))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_accepts_a_message_by_each_of_its_secrets_and_by_no_other(
    library: Library,
) -> None:
    first, second, other, _ = SECRETS
    for body in BODIES:
        sent = headers([first, second], body, datetime.now(UTC))
        assert accepts(library, first, body, sent)
        assert accepts(library, second, body, sent)
        assert not accepts(library, other, body, sent)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_rejects_an_altered_or_old_message(library: Library) -> None:
    [secret, *_], [body, other_body] = SECRETS, BODIES
    now = datetime.now(UTC)
    sent = headers([secret], body, now)
    later = str(int(sent["webhook-timestamp"]) + 1)
    assert accepts(library, secret, body, sent)
    assert not accepts(library, secret, other_body, sent)
    assert not accepts(library, secret, body, sent | {"webhook-id": "evt_1"})
    assert not accepts(library, secret, body, sent | {"webhook-timestamp": later})
    old = headers([secret], body, now - timedelta(minutes=6))
    assert not accepts(library, secret, body, old)
