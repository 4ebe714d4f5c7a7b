"""When a webhook is sent again, and when its endpoint is disabled."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from tenantry.domain.outbound_events import ALL_TYPES, OutboundEvent, event_id, version_of
from tenantry.domain.webhook_deliveries import (
    TEST_TYPE,
    message_of,
    next_attempt,
    pause_until,
    reason_to_disable,
)
from tests.support.cases import cases

NOW: Final = datetime(2026, 11, 28, 12, tzinfo=UTC)
FIVE_DAYS: Final = timedelta(days=5)
MICROSECOND: Final = timedelta(microseconds=1)


def test_attempts_follow_each_other_in_growing_distances() -> None:
    delays = [attempt - NOW for n in range(1, 8) if (attempt := next_attempt(n, NOW))]
    assert list(map(str, delays)) == [
        "0:00:05",
        "0:05:00",
        "0:30:00",
        "2:00:00",
        "5:00:00",
        "10:00:00",
        "10:00:00",
    ]


def test_there_are_eight_attempts() -> None:
    assert next_attempt(7, NOW) is not None
    assert next_attempt(8, NOW) is None


@cases(("asked", "given"), [(0, 0), (30, 30), (3600, 3600), (86400, 3600)])
def test_a_pause_lasts_as_long_as_asked_up_to_an_hour(asked: int, given: int) -> None:
    assert pause_until(timedelta(seconds=asked), NOW) == NOW + timedelta(seconds=given)


def test_without_a_wish_there_is_no_pause() -> None:
    assert pause_until(None, NOW) is None


@cases(
    ("status", "failing_for", "is_disabled"),
    [
        (500, FIVE_DAYS, True),
        (None, FIVE_DAYS, True),
        (500, FIVE_DAYS - MICROSECOND, False),
        (410, timedelta(), True),
        (404, timedelta(), False),
    ],
)
def test_an_endpoint_is_disabled_when_it_is_gone_or_fails_for_five_days(
    status: int | None, failing_for: timedelta, *, is_disabled: bool
) -> None:
    reason = reason_to_disable(status, NOW - failing_for, NOW)
    assert (reason is not None) is is_disabled


def test_a_message_is_the_event_with_the_timestamp_of_standard_webhooks() -> None:
    event = OutboundEvent("evt_7", "tenant.updated", "acme", NOW, 7, msgspec.Raw(b'{"a":1}'))
    message = msgspec.json.decode(message_of(event))
    assert message == {
        "id": "evt_7",
        "type": "tenant.updated",
        "orgId": "acme",
        "at": "2026-11-28T12:00:00Z",
        "version": 7,
        "data": {"a": 1},
        "timestamp": "2026-11-28T12:00:00Z",
    }


def test_no_event_has_the_type_of_a_test() -> None:
    assert TEST_TYPE not in ALL_TYPES


def test_an_event_is_found_by_its_id() -> None:
    assert version_of(event_id(1795843200000123)) == 1795843200000123


@cases(
    "text", ["", "evt_", "evt_x", "evt_1.0", "evt_-1", "evt_ 1", "evt_٣", "7", "evt_" + "9" * 19]
)
def test_other_texts_are_no_ids_of_events(text: str) -> None:
    assert version_of(text) is None
