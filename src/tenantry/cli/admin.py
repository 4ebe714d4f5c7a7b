"""``tenantry admin``: operator commands on the database."""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import BinaryIO, Final

import click
import msgspec
from msgspec import UNSET

from tenantry.accounts.owner_addresses import verify_as_operator
from tenantry.accounts.restore import LostChange, RestoreOutcome, export_trail
from tenantry.accounts.tenant_changes import TenantInput
from tenantry.auth.api_keys import operator_principal
from tenantry.billing.customer_links import CustomerLinks, CustomerMove
from tenantry.cli import grants, key_import
from tenantry.cli.database import on_database
from tenantry.cli.interruption import STOPPED, Interruption
from tenantry.cli.operator_services import operator_services
from tenantry.cli.options import dry_run_option, json_option
from tenantry.cli.output import (
    FAILED,
    CommandError,
    access_words,
    counted,
    print_json,
    print_lines,
    print_record,
    progress,
    shown,
)
from tenantry.cli.tenant_support import COMMANDS
from tenantry.cli.tenant_usage import admin_usage
from tenantry.cli.times import future, past
from tenantry.common.clock import system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.db.database import Database
from tenantry.domain.audit import BY_OPERATOR, AuditEvent
from tenantry.domain.errors import ValidationError
from tenantry.domain.permissions import AccessLevel, Mode
from tenantry.domain.scopes import is_scope
from tenantry.domain.tenants import ManagedTenant, is_tenant_id
from tenantry.settings import Settings

_NO_AUDIT: Final = "Revocations since the backup are not known: keys revoked since then work again"


@click.group()
def admin() -> None:
    """Work directly on the database; no server needs to run."""


@admin.command("create-tenant")
@click.option(
    "--id",
    "tenant_id",
    required=True,
    help="1 to 64 of A-Za-z0-9_-.",
)
@click.option("--name", required=True, help="The name.")
@click.option("--owner-email", required=True, help="The address for billing mail.")
@click.option("--owner-id", help="The owner's user id at the identity provider (the token's sub).")
@click.option("--customer", help="The payment provider's customer id.")
@click.option("--plan", help="A plan by contract, without an end: the grant `plan`. [free]")
def create_tenant(
    tenant_id: str,
    name: str,
    owner_email: str,
    owner_id: str | None,
    customer: str | None,
    plan: str | None,
) -> None:
    """Create a tenant and print its record as JSON.

    \b
      tenantry admin create-tenant --id acme --name Acme --owner-email a@b.example
    """
    if not is_tenant_id(tenant_id):
        raise click.BadParameter("must be 1 to 64 of A-Za-z0-9_-", param_hint="--id")
    if not _is_address(owner_email):
        raise click.BadParameter("is not an e-mail address", param_hint="--owner-email")

    async def create(settings: Settings, database: Database) -> ManagedTenant:
        if plan is not None and plan not in settings.billing.catalog:
            raise ValidationError(("--plan", f"{plan!r} is not in the plan catalog"))
        wanted = TenantInput(
            name=name,
            owner_email=owner_email,
            owner_id=owner_id,
            stripe_customer_id=customer or UNSET,
            plan=plan,
        )
        tenants = operator_services(settings, database).tenants
        tenant, _ = await tenants.put(
            BY_OPERATOR,
            tenant_id,
            wanted,
            only_new=True,
        )
        return tenant

    print_json(on_database(create, unreachable=FAILED))


def _is_address(text: str) -> bool:
    return "@" in text and text.isprintable() and " " not in text


@admin.command("create-key")
@click.option(
    "--org",
    "org_id",
    required=True,
    help="The tenant.",
)
@click.option("--name", required=True, help="The key's name.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    help="<resource>:<action>; repeatable.",
)
@click.option("--owner", is_flag=True, help="The highest level, instead of scopes.")
@click.option(
    "--mode",
    type=click.Choice(["live", "test"]),
    default="live",
    show_default=True,
    help="Whose objects the key sees.",
)
@click.option(
    "--expires-at",
    type=future,
    metavar="TIME",
    help="When it expires: an RFC 3339 time, or 90d for in 90 days.",
)
def create_key(
    org_id: str,
    name: str,
    scopes: Sequence[str],
    *,
    owner: bool,
    mode: str,
    expires_at: datetime | None,
) -> None:
    """Create an API key and print its secret, alone, on stdout.

    \b
      KEY=$(tenantry admin create-key --org acme --name CI --scope projects:read)
    """
    if bool(scopes) == owner:
        raise click.UsageError("Pass either --scope (once or more) or --owner.")
    for scope in scopes:
        if not is_scope(scope):
            raise click.BadParameter(f"{scope!r} is not <resource>:<action>", param_hint="--scope")

    async def create(settings: Settings, database: Database) -> str:
        keys = operator_services(settings, database, peppers=settings.peppers).api_keys
        key = await keys.create(
            operator_principal(org_id),
            BY_OPERATOR,
            name=name,
            scopes=tuple(scopes),
            access_level=AccessLevel.OWNER if owner else None,
            mode=Mode(mode),
            expires_at=expires_at,
            claim=None,
        )
        return key.secret

    click.echo(on_database(create, needs_pepper=True, unreachable=FAILED))


@admin.command("show-tenant")
@click.argument("org_id", metavar="ORG")
@json_option("The record as the API gives it.")
def show_tenant(org_id: str, *, as_json: bool) -> None:
    """Show a tenant.

    \b
      tenantry admin show-tenant acme
    """
    tenant = on_database(
        lambda settings, database: operator_services(settings, database).tenants.show(org_id),
        unreachable=FAILED,
    )
    fields = msgspec.structs.asdict(tenant) | {"access": access_words(tenant.access)}
    named = zip(tenant.__struct_encode_fields__, fields.values(), strict=True)
    rows = [(name, shown(value)) for name, value in named if value is not UNSET]
    print_record(tenant, rows, as_json=as_json)


@admin.command("link")
@click.argument("customer")
@click.option("--org", required=True, help="The tenant.")
@json_option()
def link(customer: str, org: str, *, as_json: bool) -> None:
    """Link a customer of the payment provider to a tenant.

    Fails if another tenant has the customer, unless that one has ended: use `tenantry admin move`.

    \b
      tenantry admin link cus_NffrFeUfNV2Hib --org acme
    """
    _change_link(lambda links: links.link(BY_OPERATOR, customer, org), as_json=as_json)


@admin.command("unlink")
@click.argument("customer")
@json_option()
def unlink(customer: str, *, as_json: bool) -> None:
    """Remove the link of a customer of the payment provider.

    The customer's events no longer count for the tenant, except those of subscriptions whose
    metadata names it. They wait for another link for 30 days.

    \b
      tenantry admin unlink cus_NffrFeUfNV2Hib
    """
    _change_link(lambda links: links.unlink(BY_OPERATOR, customer), as_json=as_json)


@admin.command("move")
@click.argument("customer")
@click.option("--org", required=True, help="The tenant that the customer belongs to from now on.")
@json_option()
def move(customer: str, org: str, *, as_json: bool) -> None:
    """Move a customer of the payment provider to another tenant, with the customer's events.

    Both tenants are folded again. Subscriptions whose metadata names a tenant stay with that
    tenant.

    \b
      tenantry admin move cus_NffrFeUfNV2Hib --org globex
    """
    _change_link(lambda links: links.move(BY_OPERATOR, customer, org), as_json=as_json)


def _change_link(
    change: Callable[[CustomerLinks], Awaitable[CustomerMove]], *, as_json: bool
) -> None:
    async def run(settings: Settings, database: Database) -> CustomerMove:
        return await change(operator_services(settings, database).links)

    moved = on_database(run)
    former = moved.moved_from or "no tenant"
    present = moved.moved_to or "no tenant"
    if as_json:
        print_json(moved)
    else:
        print_lines([f"{moved.customer_id}  {former} -> {present}"])


@admin.command("verify-owner-address")
@click.argument("org_id", metavar="ORG")
def verify_owner_address(org_id: str) -> None:
    """Record that a tenant's owner address is verified, and print the address.

    Security notices go to the address from then on, without a confirmation mail.

    \b
      tenantry admin verify-owner-address acme
    """
    address = on_database(
        lambda settings, database: verify_as_operator(
            database,
            BY_OPERATOR,
            org_id,
            settings.billing.catalog,
            system_clock,
        ),
        unreachable=FAILED,
    )
    click.echo(shown(address))


@admin.command("export-audit")
@click.option(
    "--since",
    type=past,
    metavar="TIME",
    help="Only entries since then: 1h, 7d or an RFC 3339 time. [all]",
)
def export_audit(since: datetime | None) -> None:
    """Print the audit trail of all tenants, one JSON object a line.

    Store it outside the database: `tenantry admin after-restore` needs it.

    \b
      tenantry admin export-audit --since 1d >>audit.jsonl
    """

    async def export(_: Settings, database: Database) -> None:
        encoder = msgspec.json.Encoder()
        async with aclosing(export_trail(database, since)) as parts:
            async for entries in parts:
                sys.stdout.buffer.write(encoder.encode_lines(entries))
        sys.stdout.buffer.flush()

    on_database(export)


@admin.command("after-restore")
@click.option(
    "--audit",
    "files",
    multiple=True,
    type=click.File("rb"),
    metavar="FILE",
    help="The output of export-audit, or - for the standard input; repeatable.",
)
@click.option(
    "--no-audit",
    is_flag=True,
    help="Redo nothing, without such a file: keys revoked since the backup work again.",
)
@click.option(
    "--hold-mail", is_flag=True, help="Drop the queued mails: most were sent after the backup."
)
@dry_run_option("Only print the changes to redo: write nothing.")
def after_restore(
    files: Sequence[BinaryIO],
    *,
    no_audit: bool,
    hold_mail: bool,
    dry_run: bool,
) -> None:
    """Redo the revocations since the backup, in a restored database, before the service starts.

    Finds the changes in the exported audit trail that the database has lost. Revokes and changes
    keys, removes members or lowers their roles, ends grants, and ends and suspends tenants again.
    Ends all dashboard sessions. Later events of the feed get versions above those of lost ones. You
    can run it again, also after Ctrl-C, which ends it after the change in flight.

    Exits with 1 if some changes need an operator.

    \b
      tenantry admin after-restore --audit audit.ndjson --dry-run
      cat audit-*.ndjson | tenantry admin after-restore --audit -
    """
    if bool(files) == no_audit:
        raise click.UsageError("Pass either --audit FILE (once or more) or --no-audit.")
    trail = _read_all(files)
    outcomes = Counter[RestoreOutcome]()
    interruption = Interruption()

    async def restore(settings: Settings, database: Database) -> tuple[int | None, int | None]:
        service = operator_services(settings, database, asks_provider=False).restore
        lost = await service.lost_entries(trail)
        if not dry_run:
            await service.begin_epoch()
        with progress("redoing changes", len(lost.entries)) as update, interruption.handling():
            async with aclosing(service.reapply_revocations(lost, dry_run=dry_run)) as changes:
                async for change in changes:
                    outcomes[change.outcome] += 1
                    _show_change(change)
                    update(advance=1)
                    if interruption.is_requested():
                        break
        if dry_run or interruption.is_requested():
            return None, None
        return await service.end_sessions(), await service.hold_mail() if hold_mail else None

    sessions, mails = on_database(restore)
    summary = _NO_AUDIT if no_audit else _lost(outcomes)
    click.echo("; ".join([summary, *_written(sessions, mails, dry_run=dry_run)]))
    if interruption.is_requested():
        raise CommandError(
            f"{STOPPED} The other changes are not redone, and no session is ended: do not start the service. "
            "Run the same command again; what is redone stays."
        )
    sys.exit(FAILED if outcomes[RestoreOutcome.MANUAL] else 0)


def _lost(outcomes: Counter[RestoreOutcome]) -> str:
    each = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in RestoreOutcome)
    return f"{counted(outcomes.total(), 'change')} lost: {each}"


def _written(sessions: int | None, mails: int | None, *, dry_run: bool) -> Iterator[str]:
    if dry_run:
        yield "nothing written"
    if sessions is not None:
        yield f"{counted(sessions, 'session')} ended"
    if mails is not None:
        yield f"{counted(mails, 'mail')} held back"


def _show_change(lost: LostChange) -> None:
    entry = lost.entry
    why = f": {lost.why}" if lost.why else ""
    line = (
        f"{shown(entry.at)}  {entry.action}  {entry.target_id}  {entry.org_id}  {lost.outcome}{why}"
    )
    print_lines([line])


def _read_all(files: Sequence[BinaryIO]) -> list[AuditEvent]:
    trail = [entry for file in files for entry in _read(file)]
    if files and not trail:
        raise click.UsageError(
            "The exported audit trail is empty. Check the files; if there is none, pass --no-audit."
        )
    return trail


def _read(file: BinaryIO) -> list[AuditEvent]:
    try:
        return msgspec.json.Decoder(AuditEvent).decode_lines(file.read())
    except NOT_JSON as error:
        raise click.BadParameter(
            f"{file.name} is not what export-audit prints: {error}", param_hint="--audit"
        ) from error


for _command in (*COMMANDS, *grants.COMMANDS, *key_import.COMMANDS, admin_usage):
    admin.add_command(_command)
