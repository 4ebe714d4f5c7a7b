"""The guard of events fails a test even where the service answers with its error."""

import logging

import psycopg
import pytest

from tests.support.guarded_events import forgotten_events


def test_the_error_of_a_forgotten_event_is_found_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = "UPDATE of tenants acme without an outbound event"
    errors = (psycopg.errors.RaiseException(found), psycopg.errors.RaiseException("another guard"))
    for error in (*errors, ValueError("outbound event")):
        logging.getLogger("tenantry").error("request failed", exc_info=error)
    assert forgotten_events(caplog.records) == [found]
