"""``tenantry admin``: operator commands on the database."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
import msgspec

from tenantry.accounts.members import MemberService
from tenantry.accounts.restore import Lost, Outcome, Restore, export_trail
from tenantry.accounts.tenants import TenantService, TenantWishes
from tenantry.auth.api_keys import ApiKeyService, operator_principal
from tenantry.cli.database import command_values, database, fail_on_settings, migrated, on_database
from tenantry.cli.output import FAILED, NOT_FOUND, USAGE, counted, fail, parse_time, printable, shown
from tenantry.common.clock import system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.db.database import Database
from tenantry.domain.access import AccessLevel, Mode, is_scope
from tenantry.domain.api_keys import Pepper
from tenantry.domain.audit import BY_OPERATOR, AuditEvent
from tenantry.domain.errors import DomainError, NotFoundError, ValidationError
from tenantry.domain.tenants import is_tenant_id
from tenantry.settings import Settings, SettingsError, load_for_admin


@click.command("export-audit")
@click.option("--since", type=parse_time, help="Entries made since then, RFC 3339 (default: all).")
def export_audit(since: datetime | None) -> None:
    """Print the audit trail of all tenants, one JSON object a line.

    Kept where the database's fate does not reach, it is what `tenantry admin after-restore` needs.
    """

    async def act(_: Settings, database: Database) -> None:
        encoder = msgspec.json.Encoder()
        out = sys.stdout.buffer
        async with aclosing(export_trail(database, since)) as parts:
            async for entries in parts:
                out.write(encoder.encode_lines(entries))
        out.flush()

    on_database(act)


@click.command("after-restore")
@click.option(
    "--audit", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="What export-audit printed; may be given several times.",
)  # fmt: skip
@click.option("--no-audit", is_flag=True, help="There is no such file: keys revoked since the backup work again.")
@click.option("--hold-mail", is_flag=True, help="Give up the mails that are queued: most were sent after the backup.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done with the changes: write nothing.")
def after_restore(files: Sequence[Path], *, no_audit: bool, hold_mail: bool, dry_run: bool) -> None:
    """Take away again what was taken away after the backup. For a restored database, before the service starts.

    Of the changes in the exported audit trail that the database has lost, keys are revoked and changed again, members
    removed and given lower roles, tenants ended and suspended. Everybody's sessions of the dashboard are ended. May be
    repeated.

    Exits with 1 if something is left to be done by hand.
    """
    if bool(files) == no_audit:
        raise click.UsageError("Give either --audit FILE (once or more) or --no-audit.")
    trail = [entry for file in files for entry in _read(file)]

    async def act(settings: Settings, database: Database) -> "_Done":
        aftermath = _aftermath(settings, database)
        lost = await aftermath.reapply_revocations(trail, dry_run=dry_run)
        if dry_run:
            return _Done(lost, None, None)
        return _Done(lost, await aftermath.end_sessions(), await aftermath.hold_mail() if hold_mail else None)

    done = on_database(act)
    for lost in done.lost:
        click.echo(_line(lost))
    click.echo(_summary(done, no_audit=no_audit))
    sys.exit(FAILED if any(lost.outcome is Outcome.BY_HAND for lost in done.lost) else 0)


class _Done(NamedTuple):
    lost: list[Lost]
    sessions: int | None
    mails: int | None


def _aftermath(settings: Settings, database: Database) -> Restore:
    from tenantry.jobs.queue import JobQueue  # noqa: PLC0415  # slow to import

    keys = ApiKeyService(database, settings.billing.catalog, Pepper(b""), system_clock)
    outbox = JobQueue(settings.database_url or "", asks_provider=False)
    tenants = TenantService(database, settings.billing, outbox, system_clock, settings.issuer)
    return Restore(
        database,
        keys,
        MemberService(database, outbox, settings.issuer, settings.billing.catalog, system_clock),
        tenants,
        system_clock,
    )


def _read(file: Path) -> list[AuditEvent]:
    try:
        return msgspec.json.Decoder(AuditEvent).decode_lines(file.read_bytes())
    except NOT_JSON as error:
        raise click.BadParameter(f"{file} is not what export-audit prints: {error}", param_hint="--audit") from error


def _line(lost: Lost) -> str:
    entry = lost.entry
    why = f": {lost.why}" if lost.why else ""
    return printable(
        f"{entry.at:%Y-%m-%dT%H:%M:%SZ}  {entry.action}  {entry.target_id}  {entry.org_id}  {lost.outcome}{why}"
    )


def _summary(done: _Done, *, no_audit: bool) -> str:
    if no_audit:
        parts = ["Nothing is known of what was taken away after the backup: keys revoked since then work again"]
    else:
        each = (f"{sum(lost.outcome is outcome for lost in done.lost)} {outcome}" for outcome in Outcome)
        parts = [f"{counted(len(done.lost), 'change')} lost: {', '.join(each)}"]
    if done.sessions is None:
        parts.append("nothing written")
    else:
        parts.append(f"{counted(done.sessions, 'session')} ended")
    if done.mails is not None:
        parts.append(f"{counted(done.mails, 'mail')} held back")
    return "; ".join(parts)


Result = TypeVar("Result")
Act = Callable[[Settings, TenantService, ApiKeyService], Awaitable[Result]]


@click.group()
def admin() -> None:
    """Work straight on the database: no server needs to run."""


@admin.command("create-tenant")
@click.option("--id", "tenant_id", required=True, help="1 to 64 of A-Za-z0-9_-.")
@click.option("--name", required=True, help="What people call it.")
@click.option("--owner-email", required=True, help="Where billing mail goes.")
@click.option("--owner-id", help="The owner's user id at the identity provider (the token's sub).")
@click.option("--customer", help="The payment provider's customer id.")
@click.option("--plan", help="The plan to begin with (default: free).")
def create_tenant(
    tenant_id: str, name: str, owner_email: str, owner_id: str | None, customer: str | None, plan: str | None
) -> None:
    """Create a tenant and print its record as JSON."""
    if not is_tenant_id(tenant_id):
        raise click.BadParameter("must be 1 to 64 of A-Za-z0-9_-", param_hint="--id")
    if "@" not in owner_email or not owner_email.isprintable() or " " in owner_email:
        raise click.BadParameter("is not an e-mail address", param_hint="--owner-email")

    async def act(settings: Settings, tenants: TenantService, _: ApiKeyService) -> str:
        if plan is not None and plan not in settings.billing.catalog:
            raise ValidationError(("--plan", f"{plan!r} is not in the plan catalog"))
        wishes = TenantWishes(
            name=name, owner_email=owner_email, owner_id=owner_id, stripe_customer_id=customer, plan=plan
        )
        return _json(await tenants.create_as_operator(BY_OPERATOR, tenant_id, wishes))

    click.echo(_run(act, needs_pepper=False))


@admin.command("create-key")
@click.option("--org", "org_id", required=True, help="The tenant.")
@click.option("--name", required=True, help="What people call the key.")
@click.option("--scope", "scopes", multiple=True, help="<resource>:<action>; may be given several times.")
@click.option("--owner", is_flag=True, help="The highest level, instead of scopes.")
@click.option("--mode", type=click.Choice(["live", "test"]), default="live", show_default=True)
@click.option("--expires-at", help="When it ends, RFC 3339, such as 2027-01-31T00:00:00Z.")
def create_key(
    org_id: str, name: str, scopes: Sequence[str], *, owner: bool, mode: str, expires_at: str | None
) -> None:
    """Create an API key and print its secret, alone, on stdout."""
    if bool(scopes) == owner:
        raise click.UsageError("Give either --scope (once or more) or --owner.")
    for scope in scopes:
        if not is_scope(scope):
            raise click.BadParameter(f"{scope!r} is not <resource>:<action>", param_hint="--scope")

    async def act(_: Settings, tenants: TenantService, keys: ApiKeyService) -> str:
        record = await tenants.show(org_id)
        made = await keys.create(
            operator_principal(org_id, record.plan),
            BY_OPERATOR,
            org_id=org_id,
            name=name,
            scopes=tuple(scopes),
            access_level=AccessLevel.OWNER if owner else None,
            mode=Mode(mode),
            expires_at=_moment(expires_at),
            claim=None,
        )
        return made.secret

    click.echo(_run(act, needs_pepper=True))


@admin.command("show-tenant")
@click.argument("org_id", metavar="ORG")
@click.option("--json", "as_json", is_flag=True, help="The record as the API gives it.")
def show_tenant(org_id: str, *, as_json: bool) -> None:
    """Show a tenant."""

    async def act(_: Settings, tenants: TenantService, __: ApiKeyService) -> str:
        tenant = await tenants.show(org_id)
        if as_json:
            return _json(tenant)
        names = tenant.__struct_encode_fields__
        return "\n".join(
            f"{name:20} {shown(value)}" for name, value in zip(names, msgspec.structs.astuple(tenant), strict=True)
        )

    click.echo(_run(act, needs_pepper=False))


@admin.command("verify-owner-address")
@click.argument("org_id", metavar="ORG")
def verify_owner_address(org_id: str) -> None:
    """Record that a tenant's owner address is verified, and print the address.

    Security notices go to the address from then on, without a confirmation mail.
    """

    async def act(_: Settings, tenants: TenantService, __: ApiKeyService) -> str:
        return shown(await tenants.verify_owner_address(BY_OPERATOR, org_id))

    click.echo(_run(act, needs_pepper=False))


admin.add_command(export_audit)
admin.add_command(after_restore)


def _run(act: Act[Result], *, needs_pepper: bool) -> Result:
    values, _ = command_values()
    try:
        settings = load_for_admin(values, needs_pepper=needs_pepper)
        pepper = Pepper(settings.peppers[0].reveal().encode() if needs_pepper else b"")
    except SettingsError as error:
        fail_on_settings(error)
    with database(values) as conninfo:
        migrated(conninfo)
        try:
            return asyncio.run(_connected(conninfo, settings, pepper, act))
        except NotFoundError as error:
            fail(error.detail, NOT_FOUND)
        except ValidationError as error:
            fail("; ".join(f"{where}: {message}" for where, message in error.faults), USAGE)
        except DomainError as error:
            fail(error.detail)


async def _connected(conninfo: str, settings: Settings, pepper: Pepper, act: Act[Result]) -> Result:
    from tenantry.jobs.queue import JobQueue  # noqa: PLC0415  # slow to import

    connected = Database(conninfo, pool_size=1)
    tenants = TenantService(
        connected,
        settings.billing,
        JobQueue(conninfo, asks_provider=settings.provider_secret_key is not None),
        system_clock,
        settings.issuer,
        email_subjects=settings.email_subjects,
    )
    keys = ApiKeyService(connected, settings.billing.catalog, pepper, system_clock)
    await connected.open()
    try:
        return await act(settings, tenants, keys)
    finally:
        await connected.close()


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValidationError(("--expires-at", "is not a time such as 2027-01-31T00:00:00Z")) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _json(tenant: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(tenant), indent=2).decode()
