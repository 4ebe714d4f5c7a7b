"""``tenantry reconcile``: compare tenants with the payment provider, and repair them."""

import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import click

from tenantry.billing.reconcile import Reconciler, Reconciliation
from tenantry.billing.reconcile_run import RunObserver
from tenantry.billing.tenant_comparison import Comparison
from tenantry.cli.backfill import event_line, with_provider
from tenantry.cli.billing import JSON_NAMES
from tenantry.cli.database import exit_code
from tenantry.cli.interruption import STOPPED, LongWork, named
from tenantry.common.clock import from_epoch
from tenantry.domain.billing.events import Fact
from tenantry.settings import Settings
from tenantry_cli.options import dry_run_option, json_option, tenants_option
from tenantry_cli.output import (
    DIFFERENCES,
    FAILED,
    CommandError,
    Value,
    aligned,
    change,
    counted,
    own_command,
    print_json,
    print_lines,
    progress,
)

_MOST_UNPLACED: Final = 20
"""How many subscriptions of no tenant `reconcile` names."""


@click.command("reconcile")
@tenants_option
@dry_run_option("Only print what differs: write nothing.")
@json_option("The drift and repairs as one JSON document.")
def reconcile(tenants: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Compare tenants with their subscriptions at the payment provider, and repair those that have
    drifted.

    Reads all subscriptions of the provider's account, so that it also finds those of which no event
    arrived; or compares only the tenants that you name, and reads all subscriptions only if one of
    these has none that has not ended. Shows each field that differs, as stored and then as the
    provider has it, and each customer that it links. Fetches the events that were missed. Without
    --org, lists subscriptions that have not ended and count for no tenant. Safe while the
    service runs. Needs PROVIDER_SECRET_KEY.

    \b
    Exits with
      0  without drift
      1  without drift, if a tenant could not be compared or the provider
         rejects every request; and after Ctrl-C
      3  if there was drift, repaired or not
      4  if the provider rejects the API key
      5  if a tenant that you name does not exist; then nothing is done
      6  if the provider or the database is out of reach

    \b
      tenantry reconcile --dry-run
      tenantry reconcile --org acme

    Ctrl-C ends it after the tenants in flight, with a summary and the command that continues. A
    second Ctrl-C ends it immediately, without a summary; with --json nothing is printed then.
    """

    work = LongWork("reconcile", *named(tenants), dry_run=dry_run, as_json=as_json)

    async def action(_: Settings, reconciler: Reconciler) -> Reconciliation:
        only = tenants or None
        number = await reconciler.count(only)
        with progress("comparing tenants", number) as update, work.handling():
            observer = _observer(update, work)
            return await reconciler.run(only, dry_run=dry_run, observer=observer)

    found = with_provider(action)
    again = work.continued()
    if as_json:
        document = _reconciliation_json(found)
        print_json({"dryRun": dry_run, **document, "continueWith": document["stopped"] and again})
    else:
        for line in _reconciliation_lines(found, dry_run=dry_run):
            print_lines([line])
    _exit(found, again)


def _exit(found: Reconciliation, again: str) -> NoReturn:
    where = f"Stopped after {counted(found.compared, 'tenant')}"
    if found.stopped is not None:
        raise CommandError(f"{where}: {found.stopped}", exit_code(found.stopped))
    if found.interrupted:
        raise CommandError(f"{where}: {STOPPED}\nWhat is repaired stays. Continue with: {again}")
    if found.drifted:
        sys.exit(DIFFERENCES)
    sys.exit(FAILED if found.troubled else 0)


def _observer(update: Callable[..., None], work: LongWork) -> RunObserver:
    """Return what shows a run: results as they come, and the progress."""
    subscriptions = 0

    def show_listed(number: int) -> None:
        nonlocal subscriptions
        subscriptions += number
        update(description=f"comparing tenants, {counted(subscriptions, 'subscription')} read")

    def show_found(comparison: Comparison) -> None:
        work.show(_comparison_lines(comparison))

    def show_compared(number: int) -> None:
        update(advance=number)

    return RunObserver(
        show_compared,
        show_listed,
        show_found,
        work.is_requested,
    )


def _reconciliation_json(found: Reconciliation) -> dict[str, Any]:
    return {
        "stopped": STOPPED if found.interrupted else found.stopped and str(found.stopped),
        "compared": found.compared,
        "drifted": len(found.drifted),
        "repaired": _number_repaired(found),
        "notCompared": len(found.troubled),
        "notPlaced": found.unplaced_number,
        "subscriptionsNotPlaced": found.unplaced,
        "details": [
            _comparison_json(comparison) for comparison in (*found.drifted, *found.troubled)
        ],
    }


def _reconciliation_lines(found: Reconciliation, *, dry_run: bool) -> Iterator[str]:
    """Say what is known only at the end: missed events, subscriptions of no tenant, and the
    summary.
    """
    for comparison in found.drifted:
        yield from _missed_lines(comparison)
    yield from _unplaced_lines(found)
    if found.compared or found.troubled or found.stopped is None:
        yield _reconciliation_summary(found, dry_run=dry_run)


def _reconciliation_summary(found: Reconciliation, *, dry_run: bool) -> str:
    written = "nothing written" if dry_run else f"{_number_repaired(found):,} repaired"
    troubled = f", {len(found.troubled):,} could not be compared" if found.troubled else ""
    compared = counted(found.compared, "tenant")
    return f"{compared} compared: {len(found.drifted):,} drifted, {written}{troubled}"


def _number_repaired(found: Reconciliation) -> int:
    return sum(comparison.repaired for comparison in found.drifted)


def _missed_lines(comparison: Comparison) -> Iterator[str]:
    if comparison.missed:
        yield f"{comparison.tenant_id}: {counted(len(comparison.missed), 'missed event')}"
    for event in comparison.missed:
        yield f"  {event_line(event)}"


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    fields = [
        {"field": name, "ours": ours, "provider": theirs}
        for name, ours, theirs in _fields(comparison)
    ]
    found = {
        "fields": fields,
        "linked": comparison.linked,
        "unknownPrices": comparison.unknown_prices,
        "missed": comparison.missed,
        "trouble": comparison.trouble,
    }
    return {"tenantId": comparison.tenant_id, "repaired": comparison.repaired, **found}


def _fields(comparison: Comparison) -> list[tuple[str, Value, Value]]:
    """Return each field that differs: its name in JSON, our value, the provider's."""
    drift = comparison.drift.items()
    return [
        (_json_name(name), _value(name, ours), _value(name, theirs))
        for name, (ours, theirs) in drift
    ]


def _json_name(name: str) -> str:
    """Return the API's name of a field, of the tenant or of one of its subscriptions
    (``sub_1.plan``).
    """
    subscription, dot, field = name.rpartition(".")
    return f"{subscription}{dot}{JSON_NAMES[field]}"


def _value(name: str, fact: Fact) -> Value:
    is_time = name.rpartition(".")[2] == "current_period_end"
    return from_epoch(fact) if is_time and isinstance(fact, int) else fact


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    if comparison.trouble:
        yield f"{comparison.tenant_id}: could not be compared: {comparison.trouble}"
        return
    state, link = ("has drifted", "is not linked")
    if comparison.repaired:
        state, link = ("repaired", "is linked now")
    yield f"{comparison.tenant_id}: {state}"
    rows = [(name, change(ours, theirs)) for name, ours, theirs in _fields(comparison)]
    yield from map("  {}".format, aligned(rows))
    for customer in comparison.linked:
        yield f"  customer {customer} {link}"
    for price in comparison.unknown_prices:
        yield f"  price {price} is in no plan of the catalog"


def _unplaced_lines(found: Reconciliation) -> Iterator[str]:
    """Name subscriptions at the provider that count for no tenant, with the command that places
    each.
    """
    for each in found.unplaced[:_MOST_UNPLACED]:
        customer = each.customer_id or "(unknown)"
        yield f"not placed: subscription {each.subscription_id} of customer {customer}: {each.reason}"
        if each.org_id is None and each.customer_id is not None:
            yield f"  if it is a tenant's: {own_command()} admin link {shlex.quote(customer)} --org ORG"
    if (more := found.unplaced_number - _MOST_UNPLACED) > 0:
        yield f"not placed: {counted(more, 'more subscription')}; --json lists up to 1,000"
