"""``tenantry demo``: the whole service on one machine, with example data."""

import asyncio
import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import click
import msgspec
import psycopg
from jinja2 import StrictUndefined, Template
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.cli.database import command_values, database, migrated, settings_errors
from tenantry.cli.demo_folder import ADDRESS, DATABASE, DEMO_FILE, LIVE_KEY, REQUEST_LOG, data_dir, find_demo
from tenantry.cli.output import CommandError, confirm, own_command
from tenantry.cli.serve import configure_logs, end_on_sigterm, run_server
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.domain.billing.events import REQUIRED_TYPES
from tenantry.domain.billing.state import BillingPolicy
from tenantry.settings import (
    DEMO_COMMAND,
    DEMO_FLAG,
    DEMO_PAGES,
    DEMO_PEOPLE,
    EMBEDDED,
    Settings,
    inherited,
    load,
    read_environment,
)
from tenantry_devkit.demo import example_data
from tenantry_devkit.demo.companion import INBOX_DIRECTORY, Companion, signing_key_path
from tenantry_devkit.demo.example_data import DemoFile, PersistentProvider
from tenantry_devkit.embedded_postgres import LOCK, EmbeddedServer, EmbeddedServerError
from tenantry_devkit.files import write_private
from tenantry_devkit.identity_tokens import DEFAULT_SCOPE, DemoUser, TokenIssuer, load_or_create_signing_key
from tenantry_devkit.local.endpoint import load_or_create_secret, secret_path
from tenantry_devkit.local.samples import catalog_prices
from tenantry_devkit.simulator import Simulator, WebhookEndpoint

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_LOCK_FILE: Final = "demo.lock"
_GITIGNORE: Final = ".gitignore"
_EVERYTHING: Final = "*\n"
_ENDPOINT: Final = "we_tenantry_demo"
_WEBHOOK_SECRETS: Final = "PROVIDER_WEBHOOK_SECRET"
_PLANS: Final = "TENANTRY_PLANS"
_FOLLOWED: Final = ("SUBSCRIPTIONS", "PAST_DUE_GRACE_DAYS")


@click.group(invoke_without_command=True)
@click.pass_context
def demo(context: click.Context) -> None:
    """Run everything on this machine, with example data.

    Starts PostgreSQL, a development identity provider, a mail inbox and a simulated payment provider beside the
    service, creates a tenant, a project and two keys, and prints what to try. For loopback only. Ctrl-C stops it all;
    the data stays, until `tenantry demo reset` deletes it.
    """
    if context.invoked_subcommand is not None:
        return
    end_on_sigterm()
    environment = {name: value for name, value in read_environment().items() if value}
    directory = data_dir(environment)
    if environment.get("HOST", _LOOPBACK[0]) not in _LOOPBACK:
        raise CommandError(
            "HOST: any client can sign in at the demo's identity provider: the demo is for loopback. Use `serve`."
        )
    advice = "End that one first, or set TENANTRY_DATA_DIR to another folder."
    with _locked(directory, environment.get("PORT", "3001"), advice):
        _run_demo(environment, directory)


@contextmanager
def _locked(directory: Path, port: str, advice: str) -> Iterator[None]:
    """Lock the data folder; if another demo uses it, exit with its port and ``advice``."""
    with contextlib.suppress(FileExistsError):  # an existing folder may have files that the user commits
        directory.mkdir(parents=True)
        (directory / _GITIGNORE).write_text(_EVERYTHING)  # the demo's files have secrets
    with (directory / _LOCK_FILE).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CommandError(f"The demo of {directory} runs already, at port {lock.read()}. {advice}") from None
        lock.truncate(0)
        lock.write(port)
        lock.flush()
        yield


def _run_demo(environment: dict[str, str], directory: Path) -> None:
    file = DemoFile(directory / DEMO_FILE)
    with ExitStack() as stack:
        conninfo = stack.enter_context(database({**environment, DEMO_FLAG: "true"}))
        is_named = environment.get(Settings.database_url.name, EMBEDDED) != EMBEDDED
        if is_named and not inherited((Settings.database_url.name, Settings.database_url.file_name)):
            _check_database(conninfo)
        migrated(conninfo)
        start = asyncio.run(example_data.next_moment(conninfo, system_clock()))
        provider = PersistentProvider(
            directory / example_data.PROVIDER_FILE,
            secret_key=file.values["PROVIDER_SECRET_KEY"],
            seed=secrets.randbits(64),  # new ids in each run: the ledger has those of earlier runs
            not_before=start,
        )
        port = environment.get("PORT", "3001")
        first = int(port) if port.isdigit() else 0
        companion = Companion(
            directory,
            users=example_data.USERS,
            audience=example_data.AUDIENCE,
            client_id=example_data.CLIENT_ID,
            client_secret=Secret(file.values["OIDC_CLIENT_SECRET"]),
            provider=provider,
            # those after the service's, if they are free
            ports=(first + 1, first + 2, first + 3) if first else (0, 0, 0),
        )
        stack.enter_context(companion)
        local = {
            # a key in the environment is for the real provider
            "PROVIDER_API_BASE": "" if "PROVIDER_SECRET_KEY" in environment else provider.url,
            "OIDC_ISSUER": companion.issuer,
            "OIDC_AUDIENCE": example_data.AUDIENCE,
            "OIDC_CLIENT_ID": example_data.CLIENT_ID,
            "SMTP_URL": f"smtp://127.0.0.1:{companion.smtp_port}",
            "MAIL_FROM": "tenantry demo <billing@demo.example>",
            # commands such as `trigger` follow the running demo; the next start has its own environment
            **{name: environment.get(name, "") for name in _FOLLOWED},
            # commands run in folders below too
            _PLANS: str(Path(environment[_PLANS]).resolve()) if _PLANS in environment else "",
        }
        file.save(local)
        people = ";".join(f"{user.sub}={_describe(user)}" for user in example_data.USERS)
        pages = f"Mail inbox={companion.http_url}/inbox;Payment provider={provider.url}/"
        # no load balancer has to notice its end
        write_private(directory / REQUEST_LOG, b"")
        request_log = str(directory.resolve() / REQUEST_LOG)
        values = {"DRAIN_SECONDS": "0", Settings.log_requests_to.name: request_log, **file.values, **environment}
        values |= {DEMO_FLAG: "true", DEMO_PEOPLE: people, DEMO_PAGES: pages, DEMO_COMMAND: own_command()}
        values[_WEBHOOK_SECRETS] = _with_listener(values)
        with settings_errors():
            settings = load(values)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        base = f"http://{host}:{settings.port}"
        # another database's address may have a password
        file.save({ADDRESS: base, DATABASE: EmbeddedServer(directory).url if settings.database_url is None else ""})
        keys = asyncio.run(example_data.seed(settings, conninfo))
        if keys is not None:
            file.save({LIVE_KEY: keys[0], example_data.TEST_KEY: keys[1]})
        _fill(provider, settings.billing, base + WEBHOOK_PATH, settings.webhook_secrets[0])
        configure_logs(settings)
        banner = _banner(settings, file, base, companion, provider)

        def on_ready(_: str) -> None:
            provider.begin()
            click.echo(banner)

        run_server(settings, conninfo, values, on_ready=on_ready)


def _check_database(conninfo: str) -> None:
    """Exit if the database of the ``.env`` file, which may be meant for `serve`, has tenants other than the demo's."""
    from tenantry.db.migrate import current_revision  # noqa: PLC0415  # slow to import

    try:
        with psycopg.connect(conninfo, connect_timeout=5) as connection:
            revision = current_revision(connection)
    except psycopg.Error:
        return  # the migration reports the error
    if revision is not None and asyncio.run(example_data.has_other_tenants(conninfo)):
        raise CommandError(
            f"DATABASE_URL in .env: that database ({_without_password(conninfo)}) has tenants and is not the demo's. "
            "The demo would put a tenant, an OWNER key and a sign-in without a password into it.\n"
            f"To use a separate database: DATABASE_URL= {own_command()} demo. To use that database all the same, set "
            "DATABASE_URL in the environment."
        )


def _describe(user: DemoUser) -> str:
    return f"{user.name}, {f'{user.role} of the organization {user.org_id}' if user.org_id else 'of no organization'}"


def _with_listener(values: dict[str, str]) -> str:
    """Return the webhook secrets, and the one that `tenantry listen` signs with, if it can be stored."""
    try:
        listener = load_or_create_secret(secret_path(values)).reveal()
    except (OSError, ValueError, CommandError):
        return values[_WEBHOOK_SECRETS]  # `listen` reports the error
    return f"{values[_WEBHOOK_SECRETS]},{listener}"


def _fill(provider: Simulator, policy: BillingPolicy, webhook_url: str, webhook_secret: Secret) -> None:
    if example_data.CUSTOMER not in provider.customers:
        owner = example_data.USERS[0]
        provider.customer(example_data.CUSTOMER, email=owner.email, name=owner.name)
    for price_id, amount in catalog_prices(policy.catalog).items():
        present = provider.prices.get(price_id)
        if present is None or present.unit_amount != amount:
            provider.price(price_id, amount)
    types = tuple(sorted(REQUIRED_TYPES))
    secret = webhook_secret.reveal()
    provider.store_endpoint(WebhookEndpoint(id=_ENDPOINT, url=webhook_url, secret=secret, enabled_events=types))


def _banner(settings: Settings, file: DemoFile, base: str, companion: Companion, provider: PersistentProvider) -> str:
    template = Path(__file__).with_name("pages") / "banner.txt"
    directory = shlex.quote(str(settings.data_dir.resolve())) if os.environ.get("TENANTRY_DATA_DIR") else None
    url = settings.database_url
    banner: str = Template(template.read_text("utf-8"), trim_blocks=True, undefined=StrictUndefined).render(
        base=base,
        command=own_command(),
        companion=companion,
        data_dir=directory,
        live_key=file.values.get(LIVE_KEY, "(created by an earlier start; see demo.env)"),
        place=settings.data_dir if url is None else f"the database {_without_password(url)}",
        provider=provider,
        settings=settings,
        data=example_data,
        test_key=file.values.get(example_data.TEST_KEY, "-"),
    )
    return banner


@demo.command()
@click.option("--user", "user_id", default="olivia", show_default=True, help="The user (the token's sub).")
@click.option("--org", "org_id", help="The organization to claim (default: the demo user's own).")
@click.option("--role", type=click.Choice(["owner", "admin", "member"]), help="The role to claim.")
@click.option("--scope", default=DEFAULT_SCOPE, show_default=True, help="The token's scope.")
@click.option("--email", help="A verified address to claim (default: the demo user's own).")
@click.option("--lifetime", default=3600, show_default=True, type=click.IntRange(1, 86_400), help="Seconds.")
def token(user_id: str, org_id: str | None, role: str | None, scope: str, email: str | None, lifetime: int) -> None:
    """Mint an access token from the development identity provider and print it, alone, on stdout.

    \b
      TOKEN=$(tenantry demo token --user olivia)
    """
    values, is_demo = command_values()
    directory = data_dir(values)
    if not is_demo or not signing_key_path(directory).exists():
        raise CommandError(f"There is no demo in {directory}. Start it first: {own_command()} demo")
    known = next((user for user in example_data.USERS if user.sub == user_id), DemoUser(user_id, user_id, None))
    user = msgspec.structs.replace(
        known, org_id=org_id or known.org_id, role=role or known.role, email=email or known.email
    )
    key = load_or_create_signing_key(signing_key_path(directory))
    tokens = TokenIssuer(key, values["OIDC_ISSUER"], values["OIDC_AUDIENCE"], values["OIDC_CLIENT_ID"])
    click.echo(tokens.access_token(user, scope=scope, lifetime=timedelta(seconds=lifetime)))


@demo.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(*, yes: bool) -> None:
    """Delete the demo's data: its database, keys, mails and the payment provider's account.

    Deletes what the demo made in its data folder, and nothing else there. The demo must not be running. A demo that
    uses a database of yours (DATABASE_URL) is not deleted: its keys would be lost, and its database would stay.

    \b
      tenantry demo reset --yes
    """
    values = read_environment()
    # the demo may use a database of yours
    directory = find_demo({**values, Settings.database_url.name: "", Settings.database_url.file_name: ""})
    if directory is None:
        raise CommandError(f"There is no demo in {data_dir(values)}. Start one: {own_command()} demo")
    directory = directory.resolve()
    if not (directory / LOCK).exists():
        raise CommandError(
            f"The demo in {directory} uses a database of yours (DATABASE_URL), which this command does not delete. "
            "Drop that database, then delete the folder."
        )
    with _locked(directory, "", "Stop it first, with Ctrl-C."):
        if not yes:
            confirm(f"Delete the demo in {directory}, with all its data?")
        try:
            _erase(directory)
        except (EmbeddedServerError, OSError) as error:
            raise CommandError(f"The demo cannot be deleted. {error}") from None
    with contextlib.suppress(OSError):  # it holds other files
        directory.rmdir()
    click.echo(f"Deleted the demo in {directory}. Start a new one: {own_command()} demo", err=True)


def _erase(directory: Path) -> None:
    """Delete the demo's files, its settings last: they are needed to repeat a failed deletion."""
    inbox = directory / INBOX_DIRECTORY
    if inbox.is_dir() and not inbox.is_symlink():
        shutil.rmtree(inbox)
    for file in (signing_key_path(directory), directory / example_data.PROVIDER_FILE, directory / REQUEST_LOG):
        _unlink(file)
    EmbeddedServer(directory).erase()
    _unlink(directory / DEMO_FILE)
    (directory / _LOCK_FILE).unlink()
    ignored = directory / _GITIGNORE
    if list(directory.iterdir()) == [ignored] and ignored.read_text(errors="replace") == _EVERYTHING:
        ignored.unlink()


def _unlink(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.with_suffix(".new").unlink(missing_ok=True)


def _without_password(url: str) -> str:
    parts = conninfo_to_dict(url)
    return make_conninfo("", **{name: parts[name] for name in ("user", "host", "port", "dbname") if name in parts})
