"""``tenantry demo``: everything on one machine, with example data; and tokens for trying it out."""

import asyncio
import secrets
import time
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import click
import httpx2
import msgspec

from tenantry.cli.environment import (
    DEMO_FILE,
    command_values,
    data_dir,
    database,
    fail,
    fail_on_settings,
    migrated,
)
from tenantry.cli.processes import end_on_sigterm, run_server
from tenantry.db.database import Database
from tenantry.demo import setup
from tenantry.demo.companion import Companion, signing_key_path
from tenantry.demo.events import sample_event
from tenantry.demo.identity_provider import (
    DEFAULT_SCOPE,
    DemoUser,
    load_or_create_signing_key,
    mint_access_token,
)
from tenantry.demo.setup import DemoFile
from tenantry.domain.api_keys import Pepper
from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.pages import Page
from tenantry.domain.plans import Catalog
from tenantry.gateways.provider.signature import sign
from tenantry.http.billing import EVENTS_PATH
from tenantry.http.webhooks import PATH as WEBHOOK_PATH
from tenantry.jobs.queue import JobQueue
from tenantry.kit.clock import system_clock
from tenantry.kit.secret import Secret
from tenantry.services.api_keys import ApiKeyService
from tenantry.services.billing import BillingEventView
from tenantry.services.projects import ProjectService
from tenantry.services.tenants import TenantService
from tenantry.settings import DEMO_FLAG, Settings, SettingsError, load, read_environment
from tenantry.simulator import Simulator

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_ISSUER: Final = "OIDC_ISSUER"
_NETWORK: Final = 6


@click.group(invoke_without_command=True)
@click.pass_context
def demo(context: click.Context) -> None:
    """Run everything on this machine, with example data.

    Starts PostgreSQL, a development identity provider, a mail inbox and a simulated payment provider beside the
    service, makes a tenant, a project and two keys, and prints what to try. For loopback only. Ctrl-C stops it all;
    the data stays.
    """
    if context.invoked_subcommand is None:
        _run_demo()


def _run_demo() -> None:
    end_on_sigterm()
    environment = {name: value for name, value in read_environment().items() if value}
    directory = data_dir(environment)
    file = DemoFile(directory / DEMO_FILE)
    file.load()
    if environment.get("HOST", _LOOPBACK[0]) not in _LOOPBACK:
        fail("HOST: the demo's identity provider signs anybody in, so the demo runs on loopback only. Use `serve`.")
    with ExitStack() as stack:
        client_secret = Secret(file.values["OIDC_CLIENT_SECRET"])
        conninfo = stack.enter_context(database(environment))
        migrated(conninfo)
        start = asyncio.run(setup.next_moment(Database(conninfo, pool_size=1), system_clock()))
        provider = _provider(file.values["PROVIDER_SECRET_KEY"], start)
        companion = stack.enter_context(_companion(directory, environment.get("PORT", "3001"), client_secret, provider))
        made_here = {
            # a key of one's own is for the real provider
            "PROVIDER_API_BASE": "" if "PROVIDER_SECRET_KEY" in environment else provider.url,
            "OIDC_ISSUER": companion.issuer,
            "OIDC_AUDIENCE": setup.AUDIENCE,
            "OIDC_CLIENT_ID": setup.CLIENT_ID,
            "SMTP_URL": f"smtp://127.0.0.1:{companion.smtp_port}",
            "MAIL_FROM": "tenantry demo <billing@demo.example>",
        }
        file.keep(made_here)
        values = {**file.values, **environment, DEMO_FLAG: "true"}
        try:
            settings = load(values)
        except SettingsError as error:
            fail_on_settings(error)
        _seed(settings, conninfo, file)
        _add_prices(provider, settings.billing.catalog)
        provider.add_endpoint(
            f"http://{settings.host}:{settings.port}{WEBHOOK_PATH}",
            settings.webhook_secrets[0].reveal(),
            enabled_events=HANDLED_TYPES,
        )
        banner = _banner(settings, file, companion, provider)
        run_server(settings, conninfo, values, on_ready=lambda: click.echo(banner))


def _provider(secret_key: str, start: datetime) -> Simulator:
    """The simulated provider; its ids are new in each run, since the events of earlier runs are in the ledger."""
    provider = Simulator(secret_key=secret_key, seed=secrets.randbits(64), prices={}, start=start, running=True)
    owner = setup.USERS[0]
    provider.customer(setup.CUSTOMER, email=owner.email, name=owner.name)
    return provider


def _add_prices(provider: Simulator, catalog: Catalog) -> None:
    for number, plan in enumerate(catalog.plans):
        for price_id in plan.stripe_price_ids:
            provider.price(price_id, 2900 * number)


def _companion(directory: Path, port: str, client_secret: Secret, provider: Simulator) -> Companion:
    """The identity provider, the inbox and the payment provider, on the ports after the service's if they are free."""
    first = int(port) if port.isdigit() else 0
    return Companion(
        directory,
        users=setup.USERS,
        audience=setup.AUDIENCE,
        client_id=setup.CLIENT_ID,
        client_secret=client_secret,
        provider=provider,
        http_port=first + 1 if first else 0,
        smtp_port=first + 2 if first else 0,
        provider_port=first + 3 if first else 0,
    )


def _seed(settings: Settings, conninfo: str, file: DemoFile) -> None:
    connected = Database(conninfo, pool_size=1)
    pepper = Pepper(settings.peppers[0].reveal().encode())
    made = asyncio.run(
        setup.seed_database(
            connected,
            TenantService(
                connected,
                settings.billing,
                JobQueue(conninfo, asks_provider=False),
                system_clock,
                settings.oidc.issuer if settings.oidc else None,
            ),
            ApiKeyService(connected, settings.billing.catalog, pepper, system_clock),
            ProjectService(connected, settings.billing.catalog, system_clock),
        )
    )
    if made is not None:
        file.keep({setup.LIVE_KEY: made.live, setup.TEST_KEY: made.test})


def _banner(settings: Settings, file: DemoFile, companion: Companion, provider: Simulator) -> str:
    values, base = file.values, f"http://{settings.host}:{settings.port}"
    live = values.get(setup.LIVE_KEY, "(made by an earlier start; see demo.env)")
    secret = settings.webhook_secrets[0].reveal()
    return f"""
  tenantry is ready at {base}            (Ctrl-C stops everything; the data stays in {settings.data_dir})

  tenant           {setup.TENANT}, customer {setup.CUSTOMER}
  live key         {live}
  test key         {values.get(setup.TEST_KEY, "-")}
  operator token   {settings.operator_token.reveal() if settings.operator_token else "-"}
  webhook secret   {secret}
  API reference    {base}/docs
  identity         {companion.issuer}   (users: {", ".join(user.sub for user in setup.USERS)})
  mail inbox       {companion.http_url}/inbox
  payment provider {provider.url}   (simulated; it forgets everything with each start)

  Try:
    export KEY={live}
    curl -s {base}/api/v1/projects -H "Authorization: Bearer $KEY"

    TOKEN=$(.venv/bin/tenantry demo token --user olivia)
    curl -s {base}/api/v1/auth/whoami -H "Authorization: Bearer $TOKEN"

    .venv/bin/tenantry demo event invoice.payment_failed
    curl -s {base}/api/v1/tenants/{setup.TENANT} -H "Authorization: Bearer $KEY"
    curl -s {companion.http_url}/inbox/messages.json
"""


@demo.command()
@click.option("--user", "user_id", default="olivia", show_default=True, help="Whom the token is for (its sub).")
@click.option("--org", "org_id", help="The organization to claim (default: the demo user's own).")
@click.option("--role", type=click.Choice(["owner", "admin", "member"]), help="The role to claim.")
@click.option("--scope", default=DEFAULT_SCOPE, show_default=True, help="The token's scope.")
@click.option("--email", help="A verified address to claim (default: the demo user's own).")
@click.option("--lifetime", default=3600, show_default=True, type=click.IntRange(1, 86_400), help="Seconds.")
def token(user_id: str, org_id: str | None, role: str | None, scope: str, email: str | None, lifetime: int) -> None:
    """Mint an access token from the development identity provider and print it, alone, on stdout."""
    values, is_demo = command_values()
    directory = data_dir(values)
    if not is_demo or not signing_key_path(directory).exists():
        fail(f"There is no demo in {directory}. Start it first: make run")
    known = next((user for user in setup.USERS if user.sub == user_id), DemoUser(user_id, user_id, None))
    user = msgspec.structs.replace(
        known, org_id=org_id or known.org_id, role=role or known.role, email=email or known.email
    )
    minted = mint_access_token(
        load_or_create_signing_key(signing_key_path(directory)),
        issuer=values[_ISSUER],
        audience=values["OIDC_AUDIENCE"],
        client_id=values["OIDC_CLIENT_ID"],
        user=user,
        scope=scope,
        lifetime=timedelta(seconds=lifetime),
    )
    click.echo(minted)


@demo.command()
@click.argument("event_type", type=click.Choice(sorted(HANDLED_TYPES)), metavar="TYPE")
@click.option("--plan", default="pro", show_default=True, help="The plan of a subscription event.")
@click.option("--status", default="active", show_default=True, help="The status of a subscription event.")
def event(event_type: str, plan: str, status: str) -> None:
    """Send the running demo a signed provider event for the demo tenant, and show the tenant afterwards.

    TYPE is one of the five types that are handled.
    """
    values, is_demo = command_values()
    if not is_demo:
        fail(f"There is no demo in {data_dir(values)}. Start it first: make run")
    base = f"http://{values.get('HOST') or '127.0.0.1'}:{values.get('PORT') or 3001}"
    secret = values["PROVIDER_WEBHOOK_SECRET"].split(",")[0].strip()
    key = {"Authorization": f"Bearer {values.get(setup.LIVE_KEY, '')}"}
    try:
        with httpx2.Client(base_url=base, timeout=10, trust_env=False) as client:
            ledger = client.get(EVENTS_PATH, params={"limit": 1}, headers=key)
            body = sample_event(event_type, plan=plan, status=status, created=_next_second(ledger.content))
            headers = {"Provider-Signature": sign(body, secret, int(time.time())), "Content-Type": "application/json"}
            answer = client.post(WEBHOOK_PATH, content=body, headers=headers)
            tenant = client.get(f"/api/v1/tenants/{setup.TENANT}", headers=key)
    except httpx2.TransportError as error:
        fail(f"The demo at {base} does not answer: {error}", _NETWORK)
    click.echo(f"{event_type}: {answer.status_code} {answer.text}", err=True)
    click.echo(tenant.text)


def _next_second(ledger: bytes) -> int:
    """A second later than all events of a page of the ledger: the simulated provider's clock may be ahead of ours."""
    try:
        events = msgspec.json.decode(ledger, type=Page[BillingEventView]).data
    except msgspec.MsgspecError:
        events = []  # whatever is wrong, the event's own answer will tell
    return max([int(time.time()), *(int(event.created.timestamp()) + 1 for event in events)])
