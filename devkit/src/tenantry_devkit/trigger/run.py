"""What `tenantry trigger` needs to know before it begins, and which of its three things it does."""

import asyncio
import signal
import sys
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, NoReturn

import click
import msgspec

from tenantry.cli.database import command_values, fail_on_settings, service_base
from tenantry.cli.demo_folder import LIVE_KEY
from tenantry.cli.output import FAILED, NOT_AUTHENTICATED, OUT_OF_REACH, fail
from tenantry.common.secret import Secret
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import Plan
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.http_client import new_http_client
from tenantry.settings import SettingsError, load_for_admin
from tenantry_devkit.demo.setup import TENANT
from tenantry_devkit.local.endpoint import (
    TIMEOUT,
    WEBHOOK_PATH,
    Endpoint,
    is_on_this_machine,
    origin_of,
    service_address,
    signing_secret,
)
from tenantry_devkit.local.service import (
    CredentialRefusedError,
    Credentials,
    InboxWatch,
    ServiceAwayError,
    ServiceReader,
)
from tenantry_devkit.local.stories import STORIES
from tenantry_devkit.trigger import STORY, chaos, events, story
from tenantry_devkit.trigger.session import Tools, TriggerOptions

_SECRETS: Final = "PROVIDER_WEBHOOK_SECRET"
_AMOUNT_STEP: Final = 2900

TYPES: Final = {
    "customer.subscription.updated": "a subscription began, changed or was renewed",
    "customer.subscription.deleted": "a subscription ended",
    "invoice.payment_succeeded": "a renewal was paid",
    "invoice.payment_failed": "a renewal could not be paid",
    "checkout.session.completed": "a customer completed a checkout",
}


def show_list(*, as_json: bool) -> None:
    """Print the types and the stories."""
    stories = {STORY + name: story.summary for name, story in STORIES.items()}
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"types": TYPES, "stories": stories}), indent=2).decode())
        return
    width = max(map(len, (*TYPES, *stories)))
    for name, summary in (*TYPES.items(), *stories.items()):
        click.echo(f"{name:{width}}  {summary}")


def run(options: TriggerOptions) -> NoReturn:
    """Do what is wished; exits with the code that says how it went."""
    values, is_demo = command_values()
    if options.tenant is not None and not is_tenant_id(options.tenant):
        raise click.BadParameter("is no tenant id: 1 to 64 of A-Za-z0-9_-", param_hint="--tenant")
    try:
        settings = load_for_admin(values, needs_pepper=False)
    except SettingsError as error:
        fail_on_settings(error)
    try:
        code = asyncio.run(_until_told(_act(options, values, settings.billing, is_demo=is_demo)))
    except ServiceAwayError as error:
        fail(str(error), OUT_OF_REACH)
    except CredentialRefusedError as error:
        fail(str(error), NOT_AUTHENTICATED)
    sys.exit(code)


async def _until_told(work: Coroutine[Any, Any, int]) -> int:
    """The work's result; a signal ends it properly, and is what the exit code then says."""
    task = asyncio.ensure_future(work)
    heard: list[int] = []

    def end(number: int) -> None:
        heard.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not heard:
            raise
        return 128 + heard[0]


async def _act(options: TriggerOptions, values: Mapping[str, str], policy: BillingPolicy, *, is_demo: bool) -> int:
    address = service_address(values, options.forward_to)
    if not (options.remote or options.dry_run or is_on_this_machine(address)):
        raise click.UsageError(f"{address} is not on this machine. If made-up events are to go there: --remote")
    base = _base(values, address, options.forward_to)
    plan, prices = _plan(policy, options.plan)
    secret = Secret("") if options.dry_run else _secret(values, options.sign_as)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(new_http_client(TIMEOUT))
        tools = Tools(
            options=options,
            policy=policy,
            plan=plan,
            prices=prices,
            endpoint=Endpoint(client, address, secret),
            reader=ServiceReader(client, base or origin_of(address), _credentials(values) if base else Credentials()),
            client=client,
            secret=secret,
            inbox=InboxWatch(client, values["OIDC_ISSUER"]) if is_demo and values.get("OIDC_ISSUER") else None,
            tenant=options.tenant or (TENANT if options.dry_run else None),
        )
        if options.mischief:
            return await chaos.run(tools)
        if options.what and options.what.startswith(STORY):
            return await story.run(tools)
        return await events.run(tools)


def _base(values: Mapping[str, str], address: str, forward_to: str | None) -> str | None:
    """Where the service is that gets the events, and that may be shown our credentials; None where it may not.

    They are for the service of the settings, and for whatever is on this machine.
    """
    known = service_base(values)
    if forward_to is None or not address.endswith(WEBHOOK_PATH) or origin_of(address) == origin_of(known):
        is_safe = known.startswith("https://") or is_on_this_machine(known)
        return known if is_safe else None
    return origin_of(address) if is_on_this_machine(address) else None


def _plan(policy: BillingPolicy, wanted: str) -> tuple[Plan, dict[str, int]]:
    """The plan that is wanted, and what each price of the catalog costs; a usage error where it has no price."""
    plans = {plan.id: plan for plan in policy.catalog.plans}
    prices = {
        price: number * _AMOUNT_STEP
        for number, plan in enumerate(policy.catalog.plans)
        for price in plan.stripe_price_ids
    }
    plan = plans.get(wanted)
    if plan is None or not plan.stripe_price_ids:
        priced = [each.id for each in plans.values() if each.stripe_price_ids]
        raise click.BadParameter(
            f"no plan with a price is {wanted!r}; there are {', '.join(priced)}", param_hint="--plan"
        )
    return plan, prices


def _secret(values: Mapping[str, str], sign_as: str) -> Secret:
    if sign_as == "listener":
        return signing_secret(values)
    first = values.get(_SECRETS, "").split(",")[0].strip()
    if not first:
        fail(f"{_SECRETS} is not set. Set it as the service has it, or use --sign-as listener.", FAILED)
    return Secret(first)


def _credentials(values: Mapping[str, str]) -> Credentials:
    key = values.get("TENANTRY_API_KEY", "").strip() or values.get(LIVE_KEY, "").strip()
    operator = values.get("OPERATOR_TOKEN", "").strip()
    return Credentials(Secret(key) if key else None, Secret(operator) if operator else None)
