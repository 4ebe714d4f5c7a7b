"""``tenantry trigger``: create the provider's events, sign them, and send them to the service on
this machine.
"""

import asyncio
import signal
import sys
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import click
import httpx2
import msgspec
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.text import Text

from tenantry.cli.database import admin_settings, local_values
from tenantry.cli.demo_folder import LIVE_KEY
from tenantry.cli.output import (
    FAILED,
    NOT_AUTHENTICATED,
    OUT_OF_REACH,
    CommandError,
    counted,
    own_command,
    print_json,
    printable,
)
from tenantry.common.process import is_deaf_to_hangup
from tenantry.common.secret import Secret
from tenantry.domain.billing.events import SUBSCRIPTION_UPDATED
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import Plan
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.http_client import new_http_client
from tenantry_devkit.local.endpoint import (
    TIMEOUT,
    WEBHOOK_PATH,
    WEBHOOK_SECRET,
    Endpoint,
    is_on_this_machine,
    origin_of,
    service_address,
    service_base,
    signing_secret,
)
from tenantry_devkit.local.samples import TENANT, TYPES, EventSubject, plan_prices
from tenantry_devkit.local.session import (
    STORY,
    InboxPoller,
    ServiceReader,
    TenantView,
    TriggerOptions,
    TriggerSession,
    change_lines,
    changes,
    rejection_lines,
)
from tenantry_devkit.local.stories import run_story, stories
from tenantry_sdk.errors import AuthenticationError, TenantryError

_MAX_SHOWN: Final = 10
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


def _complete_what(
    _context: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    offers = {**TYPES, **_story_summaries()}
    return [
        CompletionItem(name, help=text)
        for name, text in offers.items()
        if name.startswith(incomplete)
    ]


@click.command("trigger")
@click.argument("what", metavar="[TYPE|story:NAME]", required=False, shell_complete=_complete_what)
@click.option(
    "--tenant", metavar="ORG", help="The tenant. Default: the demo's, or that of TENANTRY_API_KEY."
)
@click.option("--plan", default="pro", show_default=True, help="The plan that is paid for.")
@click.option(
    "--status",
    type=click.Choice(_STATUSES),
    metavar="STATUS",
    help=f"The status in {SUBSCRIPTION_UPDATED}, such as trialing. [default: active]",
)
@click.option(
    "--subscription",
    metavar="ID",
    help="The subscription of the events. Default: always the same new one.",
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Set a value of the event's object, or with event.PATH of the event.",
)
@click.option(
    "--times",
    type=click.IntRange(1, 100_000),
    help="How many events. Default: 1.",
)
@click.option(
    "--shape",
    type=click.Choice(("new", "old")),
    default="new",
    show_default=True,
    help="Objects as the provider's API has them since 2025-03-31, or had them before.",
)
@click.option(
    "--forward-to",
    metavar="ADDRESS",
    help="An address, host:port, or a port. Default: the service here.",
)
@click.option("--remote", is_flag=True, help="Allow a service that is not on this machine.")
@click.option(
    "--sign-as",
    type=click.Choice(("service", "listener")),
    default="service",
    show_default=True,
    help="With PROVIDER_WEBHOOK_SECRET, or the secret of `tenantry listen`.",
)
@click.option("--dry-run", is_flag=True, help="Print the event instead of sending it.")
@click.option("--list", "as_list", is_flag=True, help="Show the types and the stories.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document; for a story one line a scene."
)
def trigger(*, as_list: bool, **arguments: Any) -> None:  # noqa: ANN401  # those of TriggerOptions
    """Send a signed provider event to the service here, and show its effect on the tenant.

    TYPE is one of the types that tenantry handles; `--list` shows them and the stories. A story,
    such as story:failed-renewal, plays weeks on a simulated clock and shows the tenant after each
    step.

    \b
      tenantry trigger customer.subscription.updated --plan pro
      tenantry trigger story:failed-renewal

    Without --tenant, a story creates its own tenant if OPERATOR_TOKEN is set, as in the demo. The
    command reads the tenant with TENANTRY_API_KEY or OPERATOR_TOKEN; without them it sends events
    all the same.

    Exits with 0 when the service accepts the events; with 1 if not; with 4 if it rejects the
    credential, with 5 if the tenant of a story does not exist, and with 6 if it does not answer.
    """
    options = TriggerOptions(**arguments)
    if as_list:
        _show_list(as_json=options.as_json)
        return
    _check(options)
    values, is_demo = local_values()
    settings = admin_settings(values)
    try:
        code = asyncio.run(
            _until_signal(
                _run(
                    options,
                    values,
                    settings.billing,
                    is_demo=is_demo,
                )
            )
        )
    except AuthenticationError as error:
        message = f"The service does not accept the credential: {error.detail}"
        raise CommandError(message, NOT_AUTHENTICATED) from None
    except TenantryError as error:
        raise CommandError(f"The service cannot be used: {error}", OUT_OF_REACH) from None
    sys.exit(code)


def _check(options: TriggerOptions) -> None:
    """Reject contradictory arguments."""
    what = options.what
    if what is None:
        raise click.UsageError(
            "Missing argument: a type or a story. `tenantry trigger --list` shows them."
        )
    if not options.is_story and what not in TYPES:
        raise click.UsageError(
            f"{what!r} is neither a type that tenantry handles nor a story. `--list` shows them."
        )
    if options.status is not None and what != SUBSCRIPTION_UPDATED:
        raise click.UsageError(
            f"--status is for {SUBSCRIPTION_UPDATED}: no other type has a status to choose."
        )
    if options.is_story:
        _check_story(options)
    if options.tenant is not None and not is_tenant_id(options.tenant):
        raise click.BadParameter("is no tenant id: 1 to 64 of A-Za-z0-9_-", param_hint="--tenant")


def _check_story(options: TriggerOptions) -> None:
    """Reject options that are for single events."""
    for_events = {
        "--subscription": options.subscription,
        "--override": options.overrides,
        "--dry-run": options.dry_run,
    }
    for name in filter(for_events.get, for_events):
        raise click.UsageError(f"{name} is for events of a TYPE.")
    if options.times is not None:
        raise click.UsageError("--times is not for stories: their events are fixed.")


def _show_list(*, as_json: bool) -> None:
    summaries = _story_summaries()
    if as_json:
        print_json({"types": TYPES, "stories": summaries})
        return
    _show_group(TYPES)
    click.echo("\nstories:")
    _show_group(summaries)


def _story_summaries() -> dict[str, str]:
    return {STORY + name: story.summary for name, story in stories().items()}


def _show_group(group: Mapping[str, str]) -> None:
    width = max(map(len, group))
    for name, summary in group.items():
        click.echo(f"{name:{width}}  {summary}")


async def _until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Return the result, or cancel the work at a signal and return 128 and its number."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and is_deaf_to_hangup():
            continue
        asyncio.get_running_loop().add_signal_handler(
            number,
            task.cancel,
            number,
        )
    try:
        return await task
    except asyncio.CancelledError as canceled:
        if not canceled.args:  # at Ctrl-C
            raise
        return 128 + int(canceled.args[0])


async def _run(
    options: TriggerOptions, values: Mapping[str, str], policy: BillingPolicy, *, is_demo: bool
) -> int:
    address = _checked_address(options, values)
    base = _trusted_base(values, address, options.forward_to)
    plan = _choose_plan(policy, options.plan)
    secret = Secret("") if options.dry_run else _secret(values, options.sign_as)
    credentials = _credentials(values) if base else {}
    issuer = values.get("OIDC_ISSUER") if is_demo else None
    async with new_http_client(TIMEOUT) as client:
        session = TriggerSession(
            options=options,
            policy=policy,
            plan=plan,
            prices=plan_prices(policy.catalog),
            endpoint=Endpoint(client, address, secret),
            reader=ServiceReader(client, base or origin_of(address), **credentials),
            inbox=InboxPoller(client, issuer) if issuer else None,
            console=Console(highlight=False),
        )
        return await (run_story(session) if options.is_story else _run_events(session))


def _checked_address(options: TriggerOptions, values: Mapping[str, str]) -> str:
    """Return the webhook endpoint; raises `click.UsageError` for that of another machine."""
    address = service_address(values, options.forward_to)
    if not (options.remote or options.dry_run or is_on_this_machine(address)):
        raise click.UsageError(
            f"{address} is not on this machine. To send made-up events there: --remote"
        )
    return address


def _trusted_base(values: Mapping[str, str], address: str, forward_to: str | None) -> str | None:
    """Return the address of the service, if the credentials may be sent there, else None.

    They may go to the service of the settings, and to this machine.
    """
    known = service_base(values)
    if (
        forward_to is None
        or not address.endswith(WEBHOOK_PATH)
        or origin_of(address) == origin_of(known)
    ):
        return known if known.startswith("https://") or is_on_this_machine(known) else None
    return origin_of(address) if is_on_this_machine(address) else None


def _choose_plan(policy: BillingPolicy, wanted: str) -> Plan:
    plans = [plan for plan in policy.catalog.plans if plan.stripe_price_ids]
    plan = next((plan for plan in plans if plan.id == wanted), None)
    if plan is None:
        priced = ", ".join(each.id for each in plans)
        raise click.BadParameter(
            f"no plan with a price is {wanted!r}; there are {priced}", param_hint="--plan"
        )
    return plan


def _secret(values: Mapping[str, str], sign_as: str) -> Secret:
    if sign_as == "listener":
        return signing_secret(values)
    first = values.get(WEBHOOK_SECRET, "").split(",")[0].strip()
    if not first:
        raise CommandError(
            f"{WEBHOOK_SECRET} is not set. Set it to the service's value, or use --sign-as listener."
        )
    return Secret(first)


def _credentials(values: Mapping[str, str]) -> dict[str, Secret]:
    """Return the credentials for `ServiceReader`."""
    key = values.get("TENANTRY_API_KEY", "").strip() or values.get(LIVE_KEY, "").strip()
    operator = values.get("OPERATOR_TOKEN", "").split(",")[0].strip()
    return {name: Secret(text) for name, text in (("api_key", key), ("operator", operator)) if text}


class _SentEvent(msgspec.Struct):
    """An event, the endpoint's answer, and the ledger's entry if it can be read. Overrides may set
    the first three.
    """

    id: Any
    type: Any
    created: Any
    status: int | None
    milliseconds: int | None
    answer: str
    outcome: str | None = None
    reason: str | None = None

    @property
    def is_accepted(self) -> bool:
        return httpx2.codes.is_success(self.status or 0)


async def _run_events(session: TriggerSession) -> int:
    """Send events of one type, show the tenant before and after, and return the exit code."""
    if session.options.dry_run:
        return await _print_events(session)
    tenant_id = session.options.tenant or await session.reader.own_tenant()
    if tenant_id is None:
        raise click.UsageError(
            "Say which tenant: --tenant ORG, or a tenant's own key in TENANTRY_API_KEY."
        )
    before = await session.reader.tenant_view(tenant_id)
    subject = session.subject(tenant_id, before)
    sent = await _send(session, subject, before)
    after = await session.reader.tenant_view(tenant_id)
    _add_outcomes(sent, after)
    if session.options.as_json:
        _print_result(session, tenant_id, sent, before, after)
    else:
        _show_events(session, sent, subject, after)
        _show_tenant(session, before, after)
    _report_hidden_tenant(tenant_id, after)
    return 0 if all(each.is_accepted for each in sent) else FAILED


async def _print_events(session: TriggerSession) -> int:
    """Print the events instead of sending them."""
    before = TenantView()
    subject = session.subject(session.options.tenant or TENANT, before)
    async for event in session.sample_events(subject, before):
        session.write_json(event)
    return 0


async def _send(
    session: TriggerSession,
    subject: EventSubject,
    before: TenantView,
) -> list[_SentEvent]:
    sent = []
    async for event in session.sample_events(subject, before):
        response = await session.endpoint.deliver(msgspec.json.encode(event))
        sent.append(
            _SentEvent(
                event["id"],
                event["type"],
                event["created"],
                response.status,
                response.milliseconds,
                response.text,
            )
        )
    return sent


def _add_outcomes(sent: list[_SentEvent], after: TenantView) -> None:
    entries = {entry.id: entry for entry in after.ledger or ()}
    for each in sent:
        if entry := entries.get(str(each.id)):
            each.outcome = entry.outcome
            each.reason = entry.reason


def _print_result(
    session: TriggerSession,
    tenant_id: str,
    sent: list[_SentEvent],
    before: TenantView,
    after: TenantView,
) -> None:
    session.write_json(
        {
            "tenantId": tenant_id,
            "events": sent,
            "before": before.tenant,
            "after": after.tenant,
            "changed": changes(before.tenant, after.tenant),
        }
    )


def _report_hidden_tenant(tenant_id: str, after: TenantView) -> None:
    """Say why the tenant cannot be shown, if it cannot."""
    if after.is_missing:
        message = (
            f"There is no tenant {tenant_id}. The service parks its events until the tenant exists."
        )
        click.echo(message, err=True)
    elif after.tenant is None:
        click.echo(f"The tenant cannot be shown: {after.problem}.", err=True)


def _show_events(
    session: TriggerSession, sent: list[_SentEvent], subject: EventSubject, after: TenantView
) -> None:
    for each in sent[:_MAX_SHOWN]:
        _show_answer(session, each)
        if each.is_accepted and not each.outcome and after.ledger is not None:
            _show_parked(session, subject)
    if rest := sent[_MAX_SHOWN:]:
        accepted = sum(each.is_accepted for each in rest)
        rejected = f", {len(rest) - accepted:,} rejected" if accepted < len(rest) else ""
        session.write(f"and {counted(len(rest), 'event')} more: {accepted:,} accepted{rejected}")


def _show_answer(session: TriggerSession, sent: _SentEvent) -> None:
    """Show an event, and the service's answer or the event's outcome."""
    head = Text.assemble(
        (str(sent.type), "bold"),
        "  ",
        (str(sent.status), "green" if sent.is_accepted else "bold red"),
        f"  {sent.milliseconds:,} ms  ",
        (str(sent.id), "dim"),
    )
    session.write(head)
    if not sent.is_accepted:
        for line in rejection_lines(sent.answer, session.options.sign_as):
            session.write(line, 2)
    elif sent.outcome:
        session.write(f"{sent.outcome}: {printable(sent.reason or '')}", 2)


def _show_parked(session: TriggerSession, subject: EventSubject) -> None:
    tenant, customer = subject.tenant, subject.customer
    parked = (
        f"The event is parked: customer {customer} is not linked to {tenant} yet. This links it:"
    )
    session.write(parked, 2, style="yellow")
    session.write(f"{own_command()} trigger checkout.session.completed --tenant {tenant}", 2)


def _show_tenant(session: TriggerSession, before: TenantView, after: TenantView) -> None:
    tenant = after.tenant
    if tenant is None:
        return
    session.console.print()
    session.write(
        Text.assemble(
            (tenant.id, "bold"),
            "  ",
            printable(tenant.name),
        )
    )
    changed = changes(before.tenant, tenant)
    for line in change_lines(changed):
        session.write(line, 2)
    if not changed:
        session.write(
            f"nothing changed: plan {tenant.plan}, status {tenant.subscription_status}",
            2,
            style="dim",
        )
