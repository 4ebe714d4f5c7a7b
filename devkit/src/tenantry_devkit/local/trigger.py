"""``tenantry trigger``: create a provider's event, sign it, and send it to the service on this
machine.
"""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any, Final

import click
import httpx2
import msgspec

from tenantry.cli.database import admin_settings, local_values
from tenantry.cli.operator_options import tenant_id
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.domain.billing.events import CHECKOUT_COMPLETED, SUBSCRIPTION_UPDATED
from tenantry.domain.plans import Catalog
from tenantry.integrations.http_client import new_http_client
from tenantry_cli.demo_folder import LIVE_KEY, is_loopback_url
from tenantry_cli.options import dry_run_option, json_option
from tenantry_cli.output import (
    FAILED,
    NOT_AUTHENTICATED,
    OUT_OF_REACH,
    CommandError,
    aligned,
    change,
    own_command,
    print_json,
    print_styled,
    printable,
    say,
)
from tenantry_devkit.local.endpoint import (
    BAD_SIGNATURE,
    TIMEOUT,
    WEBHOOK_PATH,
    WEBHOOK_SECRET,
    Endpoint,
    EndpointResponse,
    origin_of,
    service_address,
    service_base,
)
from tenantry_devkit.local.samples import (
    TENANT,
    TYPES,
    EventSubject,
    Json,
    OverrideError,
    customer_of,
    override,
    plan_prices,
    sample_event,
)
from tenantry_devkit.local.service_reader import FieldChange, ServiceReader, TenantView, changes
from tenantry_sdk import BillingEvent
from tenantry_sdk.errors import AuthenticationError, TenantryError

_STATUSES: Final = (
    "active",
    "trialing",
    "past_due",
    "unpaid",
    "canceled",
    "incomplete",
    "incomplete_expired",
    "paused",
)


class TriggerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the command line."""

    event_type: str | None
    tenant: str | None
    plan: str
    status: str | None
    overrides: tuple[str, ...]
    forward_to: str | None
    dry_run: bool
    as_json: bool


@click.command("trigger")
@click.argument("event_type", metavar="[TYPE]", required=False, type=click.Choice(list(TYPES)))
@click.option(
    "--org",
    "tenant",
    metavar="ORG",
    callback=lambda _context, _option, text: text and tenant_id(text),
    help="The tenant. Default: the demo's, or that of TENANTRY_API_KEY.",
)
@click.option("--plan", default="pro", show_default=True, help="The plan that is paid for.")
@click.option(
    "--status",
    type=click.Choice(_STATUSES),
    metavar="STATUS",
    help=f"The status in {SUBSCRIPTION_UPDATED}, such as trialing. [default: active]",
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Set a value of the event's object, or with event.PATH of the event.",
)
@click.option(
    "--forward-to",
    metavar="ADDRESS",
    help="A receiver on this machine: an address, host:port, or a port. Default: the service here.",
)
@dry_run_option("Print the event instead of sending it.")
@click.option("--list", "as_list", is_flag=True, help="Show the types.")
@json_option("Print one JSON document.")
def trigger(*, as_list: bool, **arguments: Any) -> None:  # noqa: ANN401  # those of TriggerOptions
    """Send a signed provider event to the service here, and show its effect on the tenant.

    TYPE is one of the types that `--list` shows.

    \b
      tenantry trigger customer.subscription.updated --plan pro
      tenantry trigger invoice.payment_failed --org acme

    The command reads the tenant with TENANTRY_API_KEY or OPERATOR_TOKEN; without them it sends the
    event all the same.

    Exits with 0 when the service accepts the event; with 1 if not; with 4 if it rejects the
    credential, and with 6 if it does not answer.
    """
    options = TriggerOptions(**arguments)
    if as_list:
        click.echo("\n".join(aligned(TYPES.items())))
        return
    if options.event_type is None:
        raise click.UsageError("Missing argument: a type. `tenantry trigger --list` shows them.")
    if options.status is not None and options.event_type != SUBSCRIPTION_UPDATED:
        raise click.UsageError(
            f"--status is for {SUBSCRIPTION_UPDATED}: no other type has a status to choose."
        )
    values, _ = local_values()
    try:
        code = asyncio.run(_trigger(options, values))
    except AuthenticationError as error:
        message = f"The service does not accept the credential: {error.detail}"
        raise CommandError(message, NOT_AUTHENTICATED) from None
    except TenantryError as error:
        raise CommandError(f"The service cannot be used: {error}", OUT_OF_REACH) from None
    sys.exit(code)


async def _trigger(options: TriggerOptions, values: dict[str, str]) -> int:
    """Send the event, show the tenant before and after, and return the exit code."""
    address = service_address(values, options.forward_to)
    catalog = admin_settings(values).billing.catalog
    if options.dry_run:
        print_json(_event(options, catalog, options.tenant or TENANT, TenantView()))
        return 0
    if not is_loopback_url(address):
        raise click.UsageError(f"{address} is not on this machine. Simulated events stay on it.")
    secret = _secret(values)
    async with new_http_client(TIMEOUT) as client:
        reader = _reader(client, address, values)
        tenant = options.tenant or await reader.own_tenant()
        if tenant is None:
            raise click.UsageError(
                "Say which tenant: --org ORG, or a tenant's own key in TENANTRY_API_KEY."
            )
        before = await reader.tenant_view(tenant)
        event = _event(options, catalog, tenant, before)
        response = await Endpoint(client, address, secret).deliver(msgspec.json.encode(event))
        after = await reader.tenant_view(tenant)
    _show(options, tenant, _SentEvent.of(event, response, after), before, after)
    if after.problem:
        say(after.problem)
    return 0 if response.is_good else FAILED


def _reader(client: httpx2.AsyncClient, address: str, values: Mapping[str, str]) -> ServiceReader:
    """Return a reader of the service that gets the event, or else of that of the settings."""
    base = origin_of(address) if address.endswith(WEBHOOK_PATH) else service_base(values)
    key = values.get("TENANTRY_API_KEY", "").strip() or values.get(LIVE_KEY, "").strip()
    operator = values.get("OPERATOR_TOKEN", "").split(",")[0].strip()
    return ServiceReader(
        client,
        base,
        api_key=Secret(key) if key else None,
        operator=Secret(operator) if operator else None,
    )


def _secret(values: Mapping[str, str]) -> Secret:
    first = values.get(WEBHOOK_SECRET, "").split(",")[0].strip()
    if not first:
        raise CommandError(f"{WEBHOOK_SECRET} is not set. Set it to the service's value.")
    return Secret(first)


def _event(options: TriggerOptions, catalog: Catalog, tenant: str, view: TenantView) -> Json:
    """Return the event: of now, or one second later than the tenant's newest."""
    price, amount = _priced(catalog, options.plan)
    known = view.tenant.stripe_customer_id if view.tenant else None
    subject = EventSubject(tenant, known or customer_of(tenant), price, amount)
    seconds = [int(event.created.timestamp()) + 1 for event in view.ledger or ()]
    event = sample_event(
        options.event_type or "",
        subject,
        created=max([int(system_clock().timestamp()), *seconds]),
        status=options.status or "active",
    )
    try:
        override(event, options.overrides)
    except OverrideError as error:
        raise click.BadParameter(str(error), param_hint="--override") from None
    return event


def _priced(catalog: Catalog, wanted: str) -> tuple[str, int]:
    """Return the first price of a plan, and its amount."""
    plans = {plan.id: plan.stripe_price_ids[0] for plan in catalog.plans if plan.stripe_price_ids}
    if wanted not in plans:
        raise click.BadParameter(
            f"no plan with a price is {wanted!r}; there are {', '.join(plans)}", param_hint="--plan"
        )
    return plans[wanted], plan_prices(catalog)[plans[wanted]]


class _SentEvent(msgspec.Struct):
    """An event, the endpoint's answer, and the ledger's entry if it can be read. Overrides may set
    the first three.
    """

    id: Any
    type: Any
    created: Any
    status: int | None
    milliseconds: int
    answer: str
    outcome: str | None
    reason: str | None

    @classmethod
    def of(cls, event: Json, response: EndpointResponse, after: TenantView) -> "_SentEvent":
        entry = _entry(event["id"], after)
        return cls(
            event["id"],
            event["type"],
            event["created"],
            response.status,
            response.milliseconds,
            response.text,
            entry.outcome if entry else None,
            entry.reason if entry else None,
        )

    @property
    def is_accepted(self) -> bool:
        return httpx2.codes.is_success(self.status or 0)


def _entry(event_id: object, view: TenantView) -> BillingEvent | None:
    return next((entry for entry in view.ledger or () if entry.id == event_id), None)


def _show(
    options: TriggerOptions, tenant: str, sent: _SentEvent, before: TenantView, after: TenantView
) -> None:
    changed = changes(before.tenant, after.tenant)
    if options.as_json:
        document = {
            "tenantId": tenant,
            "events": [sent],
            "before": before.tenant,
            "after": after.tenant,
            "changed": changed,
        }
        print_json(document)
        return
    _show_answer(sent)
    if sent.is_accepted and sent.outcome is None and after.ledger is not None:
        link = f"{own_command()} trigger {CHECKOUT_COMPLETED} --org {tenant}"
        click.echo(
            f"  The event is parked: its customer is not linked to {tenant} yet. This links it:\n  {link}"
        )
    _show_tenant(after, changed)


def _show_answer(sent: _SentEvent) -> None:
    """Show an event, and the service's answer or the event's outcome."""
    print_styled(
        (str(sent.type), "bold"),
        "  ",
        (str(sent.status), "green" if sent.is_accepted else "bold red"),
        f"  {sent.milliseconds:,} ms  ",
        (str(sent.id), "dim"),
    )
    if sent.outcome:
        print_styled(f"  {sent.outcome}: {printable(sent.reason or '')}")
    if not sent.is_accepted:
        answer = printable(" ".join(sent.answer.split())) or "(no text)"
        print_styled((f"  {answer}", "red"))
    if sent.answer == BAD_SIGNATURE:
        print_styled(f"  The service checks signatures with another secret than {WEBHOOK_SECRET}.")


def _show_tenant(after: TenantView, changed: list[FieldChange]) -> None:
    tenant = after.tenant
    if tenant is None:
        return
    click.echo(f"\n{tenant.id}  {printable(tenant.name)}")
    rows = [(each.field, change(each.before, each.after)) for each in changed]  # type: ignore[arg-type]
    nothing = f"nothing changed: plan {tenant.plan}, status {tenant.subscription_status}"
    click.echo("\n".join(f"  {line}" for line in aligned(rows) or [nothing]))
