"""Deliveries of webhooks: what a message contains, when it is sent again, and when an endpoint is
disabled.
"""

from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.outbound_events import OutboundEvent

TEST_TYPE: Final = "webhook.test"
"""The type of the message that `webhooks test` sends. No event has it."""
RETRY_DELAYS: Final = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=10),
)
"""How long to wait after each failed attempt. After one more a delivery is held."""
LONGEST_PAUSE: Final = timedelta(hours=1)
"""How long a receiver can ask to be left alone, with ``Retry-After``."""
DISABLED_AFTER: Final = timedelta(days=5)
"""How long the attempts at an endpoint may fail, without a success, before it is disabled."""
_GONE: Final = 410


class WebhookMessage(OutboundEvent, frozen=True, rename="camel"):
    """What a webhook sends: the event as the feed shows it, with the ``timestamp`` of Standard
    Webhooks.
    """

    timestamp: Annotated[datetime, doc("`at`, under the name that Standard Webhooks gives it.")]


def message_of(event: OutboundEvent) -> bytes:
    """Return the body of the message that carries an event."""
    message = WebhookMessage(
        event.id, event.type, event.org_id, event.at, event.version, event.data, event.at
    )
    return msgspec.json.encode(message)


def trial_message(message_id: str, endpoint: str, now: datetime) -> bytes:
    """Return the body of a message for trying out an endpoint. It belongs to no tenant."""
    data = msgspec.Raw(msgspec.json.encode({"endpoint": endpoint}))
    return message_of(OutboundEvent(message_id, TEST_TYPE, "", now, 0, data))


def next_attempt(attempts: int, now: datetime) -> datetime | None:
    """Return when to try again after so many failed attempts; None after the last one."""
    if attempts > len(RETRY_DELAYS):
        return None
    return now + RETRY_DELAYS[attempts - 1]


def pause_until(retry_after: timedelta | None, now: datetime) -> datetime | None:
    """Return until when an endpoint receives nothing, if its receiver has asked for that."""
    return None if retry_after is None else now + min(retry_after, LONGEST_PAUSE)


def reason_to_disable(status: int | None, failing_since: datetime, now: datetime) -> str | None:
    """Return why a failed attempt disables its endpoint; None if it does not.

    ``status`` is that of the response; ``failing_since`` is the first failure since a success.
    """
    if status == _GONE:
        return "the receiver answered 410 Gone"
    if now - failing_since >= DISABLED_AFTER:
        return f"no attempt succeeded for {DISABLED_AFTER.days} days"
    return None
