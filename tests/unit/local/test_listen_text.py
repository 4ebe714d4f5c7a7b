"""The output of `tenantry listen`: in a pipe, on a terminal, and as JSON."""

import io
import json
from collections import Counter
from typing import Any

from rich.console import Console

from tenantry.domain.billing.events import BillingEvent
from tenantry_devkit.local.endpoint import EndpointResponse
from tenantry_devkit.local.listen import attempt_line, json_line, summary
from tenantry_devkit.local.relay import ListedEvent, RelayAttempt, RelayOutcome, read_event
from tests.support.cases import cases

EVENT = BillingEvent(
    id="evt_79n9U8YygSP23H3J7Ze4rUgY",
    type="customer.subscription.updated",
    created=1_767_268_800,
    org_id="acme",
    customer_id="cus_1",
)


def attempt(
    outcome: RelayOutcome = RelayOutcome.DELIVERED,
    status: int | None = 200,
    answer: str = "OK",
    number: int = 1,
) -> RelayAttempt:
    response = EndpointResponse(status, answer, 12)
    return RelayAttempt(ListedEvent(EVENT, b"{}"), outcome, number, response)


REFUSED = attempt(RelayOutcome.REFUSED, 422, "price:\n  unknown \x1b[31m" + " word" * 100)
GIVEN_UP = attempt(RelayOutcome.GIVEN_UP, None, "ReadTimeout", 7)
RETRYING = attempt(RelayOutcome.RETRYING, 503, "")


def text(attempt: RelayAttempt, **console: Any) -> str:
    """Return what is printed, without the time."""
    out = io.StringIO()
    Console(file=out, highlight=False, **console).print(attempt_line(attempt), soft_wrap=True)
    return out.getvalue().partition("  ")[2]


def test_each_attempt_is_one_plain_line() -> None:
    about = "customer.subscription.updated  evt_79n9U8YygSP23H3J7Ze4rUgY  acme  cus_1"
    assert text(attempt()) == f"200     12 ms  {about}\n"
    refused = f"422     12 ms  {about}  price: unknown \N{REPLACEMENT CHARACTER}[31m word"
    assert text(REFUSED).startswith(refused)
    assert text(GIVEN_UP) == f"---            {about}  ReadTimeout; given up after 7 tries\n"
    assert text(RETRYING) == f"503     12 ms  {about}  (no text); trying again\n"


def test_status_is_colored_on_a_terminal_unless_the_user_wants_no_color() -> None:
    assert "\x1b[32m200" in text(attempt(), force_terminal=True, color_system="standard")
    assert "\x1b[3" not in text(REFUSED, force_terminal=True, no_color=True)


def test_json_has_one_line_per_attempt() -> None:
    line = json_line(REFUSED).plain
    assert "\n" not in line
    said = json.loads(line)
    assert said["answer"] == REFUSED.response.text
    del said["answer"], said["time"]
    assert said == {
        "id": EVENT.id,
        "type": EVENT.type,
        "created": "2026-01-01T12:00:00Z",
        "tenantId": "acme",
        "customer": "cus_1",
        "outcome": "refused",
        "attempt": 1,
        "status": 422,
        "milliseconds": 12,
    }


def test_summary() -> None:
    assert summary(0, Counter()) == "0 events: 0 delivered"
    assert summary(1, Counter([RelayOutcome.DELIVERED])) == "1 event: 1 delivered"
    outcomes = Counter(
        {RelayOutcome.DELIVERED: 1200, RelayOutcome.REFUSED: 300, RelayOutcome.GIVEN_UP: 400}
    )
    assert (
        summary(2000, outcomes)
        == "2,000 events: 1,200 delivered, 300 refused, 400 given up, 100 not delivered yet"
    )


@cases("body", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_event_is_skipped(body: bytes) -> None:
    assert read_event(body) is None
