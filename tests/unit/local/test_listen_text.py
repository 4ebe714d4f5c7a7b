"""The output of `tenantry listen`: on wide and narrow terminals, in a pipe, and as JSON."""

import io
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from tenantry_devkit.local.endpoint import EndpointResponse
from tenantry_devkit.local.listen import json_line, summary, write_attempt
from tenantry_devkit.local.relay import ListedEvent, RelayAttempt, RelayOutcome, read_event
from tests.support.cases import cases

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENT = ListedEvent(
    "evt_79n9U8YygSP23H3J7Ze4rUgY",
    "customer.subscription.updated",
    1_767_268_800,
    "acme",
    "cus_1",
    b"{}",
)


def attempt(**fields: Any) -> RelayAttempt:
    response = EndpointResponse(
        fields.pop("status", 200), fields.pop("answer", "OK"), fields.pop("milliseconds", 12)
    )
    known: dict[str, Any] = {
        "at": NOON,
        "event": EVENT,
        "outcome": RelayOutcome.DELIVERED,
        "number": 1,
    }
    return RelayAttempt(**{**known, "response": response, **fields})


REFUSED = attempt(
    outcome=RelayOutcome.REFUSED, status=422, answer="price:\n  unknown \x1b[31m" + " word" * 100
)
GIVEN_UP = attempt(
    outcome=RelayOutcome.GIVEN_UP, status=None, milliseconds=None, number=7, answer="ReadTimeout"
)
RETRYING = attempt(outcome=RelayOutcome.RETRYING, status=503, answer="")


def text(*attempts: RelayAttempt, **console: Any) -> str:
    out = io.StringIO()
    for each in attempts:
        write_attempt(Console(file=out, highlight=False, **console), each)
    return out.getvalue()


def test_pipe_gets_one_plain_line_per_attempt() -> None:
    lines = text(attempt(), REFUSED, GIVEN_UP, RETRYING).splitlines()
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)
    time = f"{NOON.astimezone():%H:%M:%S}"
    begins = "customer.subscription.updated  evt_79n9U8YygSP23H3J7Ze4rUgY  acme  cus_1"
    assert lines[0] == f"{time}  200     12 ms  {begins}"
    assert lines[1].startswith(
        f"{time}  422     12 ms  {begins}  price: unknown \N{REPLACEMENT CHARACTER}[31m word"
    )
    assert lines[2] == f"{time}  ---            {begins}  ReadTimeout; given up after 7 tries"
    assert lines[3].endswith("  (no text); trying again")


@cases("width", [40, 80, 120])
def test_terminal_lines_fit_and_are_colored(width: int) -> None:
    shown = text(attempt(), REFUSED, width=width, force_terminal=True, color_system="standard")
    assert "\x1b[32m200" in shown
    plain = text(attempt(), REFUSED, width=width, force_terminal=True, color_system=None)
    widths = [cell_len(line) for line in plain.splitlines()]
    assert max(widths) <= max(width, 54)  # a long type is not wrapped
    assert plain.splitlines()[0].endswith("customer.subscription.updated")


def test_no_color_is_respected() -> None:
    assert "\x1b[3" not in text(REFUSED, width=80, force_terminal=True, no_color=True)


def test_json_has_one_line_per_attempt() -> None:
    line = json_line(REFUSED)
    assert "\n" not in line
    said = json.loads(line)
    assert said["answer"] == REFUSED.response.text
    del said["answer"]
    assert said == {
        "time": "2026-01-01T12:00:00Z",
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


@cases(
    ("thing", "tenant", "customer"),
    [
        ({"metadata": {"orgId": "acme"}, "customer": "cus_1"}, "acme", "cus_1"),
        (
            {
                "customer": {"id": "cus_1"},
                "parent": {"subscription_details": {"metadata": {"orgId": "a"}}},
            },
            "a",
            "cus_1",
        ),
        (
            {"subscription_details": {"metadata": {"orgId": "a"}}, "metadata": {}, "parent": None},
            "a",
            None,
        ),
        ({"object": "customer", "id": "cus_1", "metadata": {"orgId": 1}}, None, "cus_1"),
        ({"customer": 7, "metadata": "none"}, None, None),
        ([], None, None),
    ],
)
def test_tenant_and_customer_of_an_event(
    thing: object, tenant: str | None, customer: str | None
) -> None:
    body = json.dumps(
        {"id": "evt_1", "type": "t", "created": 1, "data": {"object": thing}}
    ).encode()
    assert read_event(body) == ListedEvent("evt_1", "t", 1, tenant, customer, body)


@cases(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"id": 1, "type": "t", "created": 1}',
        b'{"id": "e", "type": "t", "created": true}',
        b'{"id": "e", "type": "t"}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_malformed_event_is_skipped(body: bytes) -> None:
    assert read_event(body) is None
