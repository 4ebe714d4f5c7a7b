"""``tenantry demo``: the whole service on one machine, with example data."""

import asyncio
import contextlib
import fcntl
import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click
import msgspec
import psycopg
from jinja2 import StrictUndefined, Template
from psycopg.conninfo import conninfo_to_dict

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.cli.database import (
    database,
    local_values,
    migrated,
    settings_errors,
    without_password,
)
from tenantry.cli.serve import configure_logs, end_on_sigterm, run_server
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.db.pooler_detection import TransactionPoolerError
from tenantry.db.sessions import open_session
from tenantry.domain.billing.events import REQUIRED_TYPES
from tenantry.domain.billing.state import BillingPolicy
from tenantry.settings import (
    DEMO_COMMAND,
    DEMO_FLAG,
    DEMO_PAGES,
    DEMO_PEOPLE,
    EMBEDDED,
    VARIABLES,
    Settings,
    inherited,
    load,
    read_conninfo,
    read_environment,
)
from tenantry_cli.demo_folder import (
    ADDRESS,
    DATABASE,
    DEMO_FILE,
    LIVE_KEY,
    TEST_KEY,
    data_dir,
    find_demo,
)
from tenantry_cli.output import CommandError, confirm, own_command
from tenantry_devkit.demo import example_data, troubled_tenant
from tenantry_devkit.demo.companion import INBOX_DIRECTORY, Companion, signing_key_path
from tenantry_devkit.demo.environment import (
    OPERATOR_TOKEN,
    RULES,
    WEBHOOK_SECRET,
    read_demo_environment,
)
from tenantry_devkit.demo.example_data import DemoFile, PersistentProvider, read_demo_file
from tenantry_devkit.embedded_postgres import EmbeddedServer, EmbeddedServerError
from tenantry_devkit.files import write_private
from tenantry_devkit.identity_tokens import (
    DEFAULT_SCOPE,
    DemoUser,
    TokenIssuer,
    load_or_create_signing_key,
)
from tenantry_devkit.local.endpoint import LISTENER_SECRET, load_or_create_secret
from tenantry_devkit.local.samples import catalog_prices, interval_of
from tenantry_devkit.serving import free_port
from tenantry_devkit.simulator import WebhookEndpoint

_DATABASE_OPTION: Final = "--database"
_DATABASE_URL: Final = Settings.database_url.name
_LOCK_FILE: Final = "demo.lock"
_GITIGNORE: Final = ".gitignore"
_EVERYTHING: Final = "*\n"
_ENDPOINT: Final = "we_tenantry_demo"
_PLANS: Final = "TENANTRY_PLANS"
_INVITATIONS: Final = "INVITATIONS"
_DATA_DIR: Final = Settings.data_dir.name
_REQUEST_LOG: Final = "requests.log"
"""The log of requests, in the data folder; each start begins a new one."""


def _parse_url(_context: click.Context, _param: click.Parameter, url: str | None) -> str | None:
    try:
        return None if url is None else read_conninfo(url)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group(invoke_without_command=True)
@click.option(
    _DATABASE_OPTION,
    "url",
    metavar="URL",
    callback=_parse_url,
    help="Use this PostgreSQL database, which must have no tables of others. Default: an embedded one.",
)
@click.pass_context
def demo(context: click.Context, url: str | None) -> None:
    """Run everything on this machine, with example data.

    Starts PostgreSQL, a development identity provider, a mail inbox and a simulated payment
    provider beside the service, creates a tenant, a project and two keys, and prints what to try.
    For loopback only. Ctrl-C stops it all; the data stays, until `tenantry demo reset` deletes it.

    The demo can run in the folder of another program. It has its own database, secrets, providers
    and mail server, whatever the environment and `.env` say: docs/how-to/demo.md lists the settings
    that it follows, such as PORT.
    """
    if context.invoked_subcommand is not None:
        if url is not None:
            raise click.UsageError(f"{_DATABASE_OPTION} is for starting the demo.")
        return
    end_on_sigterm()
    hint = (
        f"To use a database of yours: {own_command()} demo {_DATABASE_OPTION} URL"
        if url is None
        else ""
    )
    environment, note = read_demo_environment(hint)
    if note:
        click.echo(note, err=True)
    directory = data_dir(environment)
    port = environment.get("PORT", "3001")
    if port == "0":
        port = str(free_port())  # now: the addresses of all servers follow from it
    advice = f"End that one first, or set {_DATA_DIR} to another folder."
    with _locked(directory, port, advice):
        _check_folder(directory, url)
        _run_demo({**environment, "PORT": port}, directory, url)


@contextmanager
def _locked(directory: Path, port: str, advice: str) -> Iterator[None]:
    """Lock the data folder; if another demo uses it, exit with its port and ``advice``."""
    # an existing folder may have files that the user commits
    with contextlib.suppress(FileExistsError):
        directory.mkdir(parents=True)
        (directory / _GITIGNORE).write_text(_EVERYTHING)  # the demo's files have secrets
    with (directory / _LOCK_FILE).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CommandError(
                f"The demo of {directory} runs already, at port {lock.read()}. {advice}"
            ) from None
        lock.truncate(0)
        lock.write(port)
        lock.flush()
        yield


def _check_folder(directory: Path, url: str | None) -> None:
    """Exit if the folder is that of another database: keys, provider and mails belong to one."""
    known = read_demo_file(directory / DEMO_FILE)
    other_folder = f"set {_DATA_DIR} to another folder"
    if not known and url is None and EmbeddedServer(directory).exists:
        raise CommandError(
            f"The database in {directory} is not the demo's: `serve` with {_DATABASE_URL}={EMBEDDED} has made it. "
            f"For the demo, {other_folder}."
        )
    if LIVE_KEY not in known:  # it has never started
        return
    former = known.get(_DATABASE_URL)
    if _is_same_database(former, url):
        return
    if former is None:
        raise CommandError(
            f"The demo in {directory} has an embedded database. For a demo on another one, {other_folder}, or first "
            f"delete this demo: {own_command()} demo reset"
        )
    raise CommandError(
        f"The demo in {directory} uses the database {without_password(former)}. Name it again with {_DATABASE_OPTION}, "
        f"or {other_folder}."
    )


def _is_same_database(former: str | None, url: str | None) -> bool:
    """Whether two addresses name one database, whatever the passwords; None is the embedded one."""
    if former is None or url is None:
        return former == url
    addresses = [conninfo_to_dict(each) for each in (former, url)]
    for address in addresses:
        address.pop("password", None)
    return addresses[0] == addresses[1]


def _run_demo(environment: dict[str, str], directory: Path, url: str | None) -> None:
    if url is None:
        # before the embedded database: an interrupted start leaves a demo
        DemoFile(directory / DEMO_FILE)
    with ExitStack() as stack:
        conninfo = stack.enter_context(_prepared_database(directory, url))
        file = DemoFile(directory / DEMO_FILE)
        provider = PersistentProvider(
            directory / example_data.PROVIDER_FILE,
            secret_key=file.values["PROVIDER_SECRET_KEY"],
            seed=secrets.randbits(64),  # new ids in each run: the ledger has those of earlier runs
            times=asyncio.run(example_data.account_times(conninfo, system_clock())),
        )
        companion = stack.enter_context(
            _companion(
                file,
                directory,
                provider,
                environment["PORT"],
            )
        )
        file.save(_rules(environment, file) | _own_settings(companion, provider))
        values = _values(environment, file, directory, url) | _for_pages(companion, provider)
        with settings_errors("The demo cannot start"):
            settings = load(values)
        base = f"http://{settings.host}:{settings.port}"
        file.save(
            {
                ADDRESS: base,
                _DATABASE_URL: url or "",
                DATABASE: url or EmbeddedServer(directory).url,
            }
        )
        keys = asyncio.run(
            example_data.seed(
                settings,
                conninfo,
                has_keys=LIVE_KEY in file.values,
            )
        )
        if keys is not None:
            file.save({LIVE_KEY: keys[0], TEST_KEY: keys[1]})
        _fill(
            provider,
            settings.billing,
            base + WEBHOOK_PATH,
            settings.webhook_secrets[0],
        )
        configure_logs(settings)
        banner = _banner(settings, file, base, companion, provider)

        def on_ready(_: str) -> None:
            provider.begin()
            click.echo(banner)

        run_server(settings, conninfo, values, on_ready=on_ready)


@contextmanager
def _prepared_database(directory: Path, url: str | None) -> Iterator[str]:
    """Give the connection string of the migrated database; the embedded one runs for the block."""
    wanted = {_DATABASE_URL: url or EMBEDDED, _DATA_DIR: str(directory)}
    with database(wanted) as conninfo:
        if url is None:
            remedy = f"an older version has made it; delete that demo: {own_command()} demo reset"
            migrated(
                conninfo,
                setting=str(directory),
                remedy=remedy,
            )
        else:
            _check_tenants(conninfo)
            migrated(conninfo, setting=_DATABASE_OPTION)
        yield conninfo


def _check_tenants(conninfo: str) -> None:
    """Exit if a database of the user's has tenants other than the demo's."""
    from tenantry.db.migrate import current_revision  # noqa: PLC0415  # slow to import

    try:
        with open_session(conninfo) as connection:
            revision = current_revision(connection)
    except (psycopg.Error, TransactionPoolerError):
        return  # the migration reports the error
    if revision is not None and asyncio.run(example_data.has_other_tenants(conninfo)):
        raise CommandError(
            f"{_DATABASE_OPTION}: that database ({without_password(conninfo)}) has tenants and is not the demo's. The "
            "demo would put a tenant, an OWNER key and a sign-in without a password into it, and deliver its mail to "
            "the demo's inbox. Name an empty database."
        )


def _companion(
    file: DemoFile, directory: Path, provider: PersistentProvider, port: str
) -> Companion:
    first = int(port) if port.isdigit() else 0
    return Companion(
        directory,
        users=example_data.USERS,
        audience=example_data.AUDIENCE,
        client_id=example_data.CLIENT_ID,
        client_secret=Secret(file.values["OIDC_CLIENT_SECRET"]),
        provider=provider,
        # those after the service's, if they are free
        ports=(first + 1, first + 2, first + 3) if first else (0, 0, 0),
    )


def _rules(environment: dict[str, str], file: DemoFile) -> dict[str, str]:
    """Return the rules that the demo follows; empty for those that an earlier start had."""
    rules = {name: environment.get(name, file.generated.get(name, "")) for name in RULES}
    rules[_INVITATIONS] = rules[_INVITATIONS] or "true"  # the demo has an inbox
    rules[OPERATOR_TOKEN] = environment.get(OPERATOR_TOKEN, file.values[OPERATOR_TOKEN])
    if _PLANS in environment:
        # commands run in folders below too
        rules[_PLANS] = str(Path(environment[_PLANS]).resolve())
    return rules


def _own_settings(companion: Companion, provider: PersistentProvider) -> dict[str, str]:
    return {
        "PROVIDER_API_BASE": provider.url,
        "OIDC_ISSUER": companion.issuer,
        "OIDC_AUDIENCE": example_data.AUDIENCE,
        "OIDC_CLIENT_ID": example_data.CLIENT_ID,
        "OPERATORS": ",".join(user.sub for user in example_data.OPERATORS),
        "SMTP_URL": f"smtp://127.0.0.1:{companion.smtp_port}",
        "MAIL_FROM": "tenantry demo <billing@demo.example>",
    }


def _values(
    environment: dict[str, str], file: DemoFile, directory: Path, url: str | None
) -> dict[str, str]:
    """Return every setting of the service; an empty one keeps `.env` out of the processes that it
    starts.
    """
    request_log = directory.resolve() / _REQUEST_LOG
    write_private(request_log, b"")
    values = {
        **dict.fromkeys(VARIABLES, ""),
        "DRAIN_SECONDS": "0",  # no load balancer has to notice its end
        **file.values,
        "PORT": environment["PORT"],
        _DATABASE_URL: url or EMBEDDED,
        _DATA_DIR: str(directory),
        Settings.log_requests_to.name: str(request_log),
    }
    own = file.values[WEBHOOK_SECRET]
    further = (environment.get(WEBHOOK_SECRET, ""), _listener_secret(directory))
    values[WEBHOOK_SECRET] = ",".join(filter(None, (own, *further)))
    return values


def _for_pages(companion: Companion, provider: PersistentProvider) -> dict[str, str]:
    people = ";".join(f"{user.sub}={_describe(user)}" for user in example_data.USERS)
    pages = f"Mail inbox={companion.http_url}/inbox;Payment provider={provider.url}/"
    return {
        DEMO_FLAG: "true",
        DEMO_PEOPLE: people,
        DEMO_PAGES: pages,
        DEMO_COMMAND: own_command(),
    }


def _describe(user: DemoUser) -> str:
    if user.is_operator:
        return f"{user.name}, operator of this service"
    of = f"{user.role} of the organization {user.org_id}" if user.org_id else "of no organization"
    return f"{user.name}, {of}"


def _listener_secret(directory: Path) -> str:
    """Return the secret that `tenantry listen` signs with; empty if it cannot be stored."""
    try:
        return load_or_create_secret(directory / LISTENER_SECRET).reveal()
    except (OSError, ValueError):
        return ""  # `listen` reports the error


def _fill(
    provider: PersistentProvider, policy: BillingPolicy, webhook_url: str, webhook_secret: Secret
) -> None:
    if example_data.CUSTOMER not in provider.customers:
        owner = example_data.USERS[0]
        provider.customer(
            example_data.CUSTOMER,
            email=owner.email,
            name=owner.name,
        )
    for price_id, amount in catalog_prices(policy.catalog).items():
        present = provider.prices.get(price_id)
        if present is None or present.unit_amount != amount:
            provider.price(price_id, amount, interval=interval_of(price_id))
    types = tuple(sorted(REQUIRED_TYPES))
    secret = webhook_secret.reveal()
    provider.store_endpoint(
        WebhookEndpoint(
            id=_ENDPOINT,
            url=webhook_url,
            secret=secret,
            enabled_events=types,
        )
    )
    if provider.has_new_history:
        troubled_tenant.fail_a_payment(provider, policy.catalog)


def _banner(
    settings: Settings,
    file: DemoFile,
    base: str,
    companion: Companion,
    provider: PersistentProvider,
) -> str:
    template = Path(__file__).with_name("pages") / "banner.txt"
    directory = settings.data_dir.resolve()
    is_chosen = bool(inherited([_DATA_DIR]).get(_DATA_DIR))
    url = settings.database_url
    banner: str = Template(
        template.read_text("utf-8"),
        trim_blocks=True,
        undefined=StrictUndefined,
    ).render(
        base=base,
        command=own_command(),
        companion=companion,
        database=None if url is None else without_password(url),
        folder=shlex.quote(str(directory)),
        folder_is_chosen=is_chosen,
        live_key=file.values[LIVE_KEY],
        place=settings.data_dir if url is None else f"the database {without_password(url)}",
        provider=provider,
        settings=settings,
        data=example_data,
        troubled=troubled_tenant,
        test_key=file.values[TEST_KEY],
    )
    return banner


@demo.command()
@click.option(
    "--user", "user_id", default="olivia", show_default=True, help="The user (the token's sub)."
)
@click.option("--org", "org_id", help="The organization to claim (default: the demo user's own).")
@click.option(
    "--role",
    type=click.Choice(["owner", "admin", "member"]),
    help="The role to claim.",
)
@click.option("--scope", default=DEFAULT_SCOPE, show_default=True, help="The token's scope.")
def token(user_id: str, org_id: str | None, role: str | None, scope: str) -> None:
    """Mint an access token from the development identity provider and print it, alone, on stdout.

    \b
      TOKEN=$(tenantry demo token --user olivia)
    """
    values, is_demo = local_values()
    directory = data_dir(values)
    if not is_demo or not signing_key_path(directory).exists():
        raise CommandError(f"There is no demo in {directory}. Start it first: {own_command()} demo")
    known = next(
        (user for user in example_data.USERS if user.sub == user_id),
        DemoUser(user_id, user_id, None),
    )
    user = msgspec.structs.replace(
        known,
        org_id=org_id or known.org_id,
        role=role or known.role,
    )
    key = load_or_create_signing_key(signing_key_path(directory))
    tokens = TokenIssuer(
        key,
        values["OIDC_ISSUER"],
        values["OIDC_AUDIENCE"],
        values["OIDC_CLIENT_ID"],
    )
    click.echo(tokens.access_token(user, scope=scope))


@demo.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(*, yes: bool) -> None:
    """Delete the demo's data: its database, keys, mails and the payment provider's account.

    Deletes what the demo made in its data folder, and nothing else there. The demo must not be
    running. A demo that uses a database of yours (--database) is not deleted: its keys would be
    lost, and its database would stay.

    \b
      tenantry demo reset --yes
    """
    values = read_environment()
    directory = find_demo(values)
    if directory is None:
        raise CommandError(
            f"There is no demo in {data_dir(values)}. Start one: {own_command()} demo"
        )
    directory = directory.resolve()
    if url := read_demo_file(directory / DEMO_FILE).get(_DATABASE_URL):
        raise CommandError(
            f"The demo in {directory} uses a database of yours ({without_password(url)}), which this command does not "
            "delete. Drop that database, then delete the folder."
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
    for file in (
        signing_key_path(directory),
        directory / example_data.PROVIDER_FILE,
        directory / _REQUEST_LOG,
        directory / LISTENER_SECRET,
    ):
        _unlink(file)
    EmbeddedServer(directory).erase()
    _unlink(directory / DEMO_FILE)
    (directory / _LOCK_FILE).unlink()
    ignored = directory / _GITIGNORE
    if (
        list(directory.iterdir()) == [ignored]
        and ignored.read_text(errors="replace") == _EVERYTHING
    ):
        ignored.unlink()


def _unlink(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.with_suffix(".new").unlink(missing_ok=True)
