"""A tenant's history as text, and the progress bar: on terminals wide and narrow, and piped."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from tenantry.cli.billing import show
from tenantry.domain.access import TenantAccess
from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.explanation import (
    BillingEventView,
    BillingExplanation,
    BillingFields,
    FieldComparison,
    StateView,
)
from tenantry.domain.tenants import Tenant
from tenantry_cli.output import progress
from tests.support.cases import cases

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIELDS = BillingFields("free", "none", None, cancel_at_period_end=False)
ACCESS = TenantAccess("full", "pro", None, "The subscription is active.")
TENANT = Tenant(
    "acme",
    "Süßwaren 株式会社",
    "pro",
    "active",
    None,
    False,
    None,
    None,
    1,
    ACCESS,
    None,
    "usr",
    NOON,
    NOON,
)
ENTRY = BillingEventView(
    id="evt_1",
    type="customer.subscription.updated",
    created=NOON,
    received_at=NOON + timedelta(hours=3, minutes=5),
    livemode=True,
    outcome=Outcome.LATE,
    reason="The subscription is active: price price_pro means plan pro. " * 2,
    before=FIELDS,
    after=BillingFields("pro", "none", NOON, cancel_at_period_end=False),
    anomalies=[],
    reversal=None,
)


def explanation(**fields: Any) -> BillingExplanation:
    known: dict[str, Any] = {
        "tenant": TENANT,
        "grants": (),
        "endings": (),
        "customers": ("cus_1",),
        "suspended": False,
        "ended": False,
        "earlier": 0,
        "entries": (ENTRY,),
        "state": StateView("pro", "active", None, False, None, None, None),
        "subscriptions": (),
        "events": 1,
        "differences": (),
        "parked": 0,
    }
    return BillingExplanation(**{**known, **fields})


def text(shown: BillingExplanation, **console: Any) -> str:
    out = io.StringIO()
    show(shown, Console(file=out, highlight=False, **console))
    return out.getvalue()


def test_piped_text_is_plain_and_not_wrapped() -> None:
    lines = text(explanation()).splitlines()
    assert lines[:4] == [
        "acme  Süßwaren 株式会社",
        "plan pro, subscription active, customer cus_1",
        "",
        "2026-01-01T12:00:00Z  customer.subscription.updated  late",
    ]
    assert f"  {ENTRY.reason.strip()}" in lines
    assert "  plan: free -> pro" in lines
    assert "  currentPeriodEnd: - -> 2026-01-01T12:00:00Z" in lines
    assert "  evt_1, arrived 3 h later" in lines
    assert lines[-1] == "The fold of 1 event gives just that."
    assert "\x1b" not in "".join(lines)


@cases(
    ("entries", "earlier", "events", "counted"),
    [
        (1, 0, 1, "1 event"),
        (2, 0, 1, "1 of 2 events (the other does not concern the state)"),
        (2, 3, 2, "2 of 5 events (the others do not concern the state)"),
    ],
)
def test_events_are_counted_as_they_are_listed(
    entries: int, earlier: int, events: int, counted: str
) -> None:
    shown = text(explanation(entries=(ENTRY,) * entries, earlier=earlier, events=events))
    assert shown.splitlines()[-1] == f"The fold of {counted} gives just that."


@cases("width", [24, 40, 80])
def test_text_wraps_at_the_width_of_the_terminal(width: int) -> None:
    shown = text(explanation(), width=width, force_terminal=True, no_color=True, color_system=None)
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    assert "".join(shown.split()) == "".join(text(explanation()).split())


def test_terminal_gets_colors_unless_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = {"width": 80, "force_terminal": True, "color_system": "standard"}
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[33mlate" in text(explanation(), **terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in text(explanation(), **terminal)


def test_control_characters_are_replaced() -> None:
    tenant = msgspec.structs.replace(TENANT, name="evil\x1b[2Jname\u202e")
    assert "evil\N{REPLACEMENT CHARACTER}[2Jname\N{REPLACEMENT CHARACTER}" in text(
        explanation(tenant=tenant)
    )


@cases(
    ("delay", "words"),
    [
        (timedelta(milliseconds=900), "at once"),
        (timedelta(seconds=59), "59 s later"),
        (timedelta(days=2, minutes=3), "2 d later"),
        (timedelta(days=40, hours=5, minutes=3), "40 d later"),
        (timedelta(seconds=-7), "7 s too early"),
    ],
)
def test_how_late_an_event_arrived(delay: timedelta, words: str) -> None:
    entry = msgspec.structs.replace(ENTRY, received_at=NOON + delay)
    assert f"evt_1, arrived {words}\n" in text(explanation(entries=(entry,)))


def test_an_entry_without_states_changed_nothing() -> None:
    entry = msgspec.structs.replace(ENTRY, before=None, after=None)
    assert "->" not in text(explanation(entries=(entry,)))


def test_differences_name_the_command_that_repairs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tenantry"])
    shown = text(explanation(differences=(FieldComparison("plan", "free", "pro"),), parked=2))
    assert "gives something else:\n  plan: free -> pro\n" in shown
    assert "2 parked events could take their place." in shown
    assert shown.endswith("To repair it: tenantry admin rebuild-tenants acme\n")


def test_state_of_the_tenant_is_shown() -> None:
    shown = text(explanation(customers=(), suspended=True, ended=True, earlier=1234))
    assert "no customer, suspended, ended\n" in shown
    assert "(1,234 earlier left out; --limit shows more)" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(*, terminal: bool) -> None:
    out = io.StringIO()
    with progress(
        "folding", 4, console=Console(file=out, force_terminal=terminal, width=80)
    ) as update:
        update(advance=3)
        update(description="still folding")
    assert ("3/4" in out.getvalue()) is terminal
    assert ("still folding" in out.getvalue()) is terminal
    assert terminal or out.getvalue() == ""


def test_anomalies_of_an_entry_are_shown() -> None:
    entry = msgspec.structs.replace(ENTRY, anomalies=["unknown_price", "wrong_livemode"])
    assert "  unexpected: unknown_price, wrong_livemode\n" in text(explanation(entries=(entry,)))
