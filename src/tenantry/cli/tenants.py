"""The commands of ``tenantry admin`` for organizations."""

from typing import Final

import click
import msgspec
from msgspec import UNSET

from tenantry.cli.operator import Operator, OperatorError
from tenantry.cli.operator_command import OperatorCommand
from tenantry.cli.operator_options import (
    json_lines_option,
    org_argument,
    reason_option,
    search_text,
)
from tenantry.domain.access import TenantAccess
from tenantry.domain.plans import AccessState
from tenantry.domain.tenant_search import TenantFilter, TenantMatch
from tenantry.domain.tenants import ManagedTenant, TenantInput, is_tenant_id
from tenantry_cli.options import json_option, limit_option, yes_option
from tenantry_cli.output import (
    NOT_FOUND,
    Column,
    CommandError,
    access_words,
    columns,
    confirm,
    minute,
    print_json,
    print_list,
    print_record,
    report,
    shown,
)

_EXISTS: Final = "tenant_exists"
"""The code of the error."""


@click.command("create-tenant", cls=OperatorCommand)
@click.option("--id", "org_id", required=True, help="1 to 64 of A-Za-z0-9_-.")
@click.option("--name", required=True, help="The name.")
@click.option("--owner-email", required=True, help="The address for billing mail.")
@click.option("--owner-id", help="The owner's user id at the identity provider (the token's sub).")
@click.option("--customer", help="The payment provider's customer id.")
@click.option("--plan", help="A plan by contract, without an end: the grant `plan`. [free]")
def create_tenant(
    operator: Operator,
    *,
    org_id: str,
    name: str,
    owner_email: str,
    owner_id: str | None,
    customer: str | None,
    plan: str | None,
) -> None:
    """Create an organization and print its record as JSON.

    \b
      tenantry admin create-tenant --id acme --name Acme --owner-email a@b.example
    """
    if not is_tenant_id(org_id):
        raise click.BadParameter("must be 1 to 64 of A-Za-z0-9_-", param_hint="--id")
    if not _is_address(owner_email):
        raise click.BadParameter("is not an e-mail address", param_hint="--owner-email")
    wanted = TenantInput(
        name=name,
        owner_email=owner_email,
        owner_id=owner_id,
        stripe_customer_id=customer or UNSET,
        plan=plan,
    )
    try:
        tenant = operator.create_tenant(org_id, wanted)
    except OperatorError as error:
        if error.code != _EXISTS:
            raise
        message = f"{error.message} Nothing was changed: tenantry admin show-tenant {org_id}"
        raise CommandError(message) from None
    print_json(tenant)


def _is_address(text: str) -> bool:
    return "@" in text and text.isprintable() and " " not in text


@click.command("show-tenant", cls=OperatorCommand)
@org_argument
@json_option("The record as the API gives it.")
def show_tenant(operator: Operator, *, org_id: str, as_json: bool) -> None:
    """Show an organization.

    \b
      tenantry admin show-tenant acme
    """
    tenant = operator.show_tenant(org_id)
    fields = msgspec.structs.asdict(tenant) | {"access": access_words(tenant.access)}
    named = zip(tenant.__struct_encode_fields__, fields.values(), strict=True)
    rows = [(name, shown(value)) for name, value in named if value is not UNSET]
    print_record(tenant, rows, as_json=as_json)


@click.command("list-tenants", cls=OperatorCommand)
@click.option(
    "--search",
    type=search_text,
    metavar="TEXT",
    help="Part of the name, id, owner's address or a customer's id.",
)
@click.option(
    "--plan",
    type=search_text,
    metavar="PLAN",
    help="Only organizations on this plan.",
)
@click.option(
    "--status",
    type=search_text,
    metavar="STATUS",
    help="Only organizations whose subscription has this status.",
)
@click.option(
    "--access",
    type=click.Choice(["full", "grace", "none"]),
    help="Only organizations with this access now; none means the limits of the free plan.",
)
@click.option(
    "--suspended/--not-suspended",
    default=None,
    help="Only suspended organizations, or only the others.",
)
@limit_option
@json_lines_option
def list_tenants(
    operator: Operator,
    *,
    search: str | None,
    plan: str | None,
    status: str | None,
    access: AccessState | None,
    suspended: bool | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List organizations, the newest first; ended ones are left out. Options together narrow the
    list.

    \b
      tenantry admin list-tenants --plan pro --access none
      tenantry admin list-tenants --search acme.example
    """
    wanted = TenantFilter(
        search,
        plan,
        status,
        access,
        suspended,
    )
    tenants = operator.list_tenants(wanted, limit)
    print_list(tenants, _TENANT_COLUMNS, "No organization matches.", as_json=as_json)


@click.command("find", cls=OperatorCommand)
@click.argument("text", type=search_text)
@json_lines_option
def find(operator: Operator, *, text: str, as_json: bool) -> None:
    """Find an organization by a customer, an address, a key, or a person.

    TEXT is an organization's id, the id of a customer of the payment provider, the owner's address,
    a member's address, name or user id, a key's id, or four characters of an end of its secret, or
    its characters as in logs: svc_live_AbCd...wxyz. Exits with 5 if nothing is found. For parts of
    names use `tenantry admin list-tenants --search`.

    \b
      tenantry admin find cus_NffrFeUfNV2Hib
      tenantry admin find ada@acme.example
      tenantry admin find wxyz
    """
    matches = operator.find(text)
    if not matches:
        raise CommandError(
            f"Nothing found for {text}. Looked for {_LOOKED_FOR}, {operator.where}.\n"
            f"For parts of names: tenantry admin list-tenants --search TEXT",
            NOT_FOUND,
        )
    print_list(matches, _MATCH_COLUMNS, "", as_json=as_json)


@click.command("suspend", cls=OperatorCommand)
@org_argument
@reason_option
@yes_option
@json_option()
def suspend(
    operator: Operator, *, org_id: str, reason: str | None, yes: bool, as_json: bool
) -> None:
    """Suspend an organization: its keys and tokens are rejected with 403 org_suspended until you
    resume it.

    Billing events still count.

    \b
      tenantry admin suspend acme --reason "Invoice 2026-114 is unpaid"
    """
    if not yes:
        confirm(f"Suspend {_described(operator.show_tenant(org_id))} {operator.where}?")
    tenant = operator.suspend(org_id, reason)
    done = f"Suspended {tenant.id} {operator.where}: its credentials are rejected."
    report(tenant, done, as_json=as_json)


@click.command("resume", cls=OperatorCommand)
@org_argument
@reason_option
@json_option()
def resume(operator: Operator, *, org_id: str, reason: str | None, as_json: bool) -> None:
    """End the suspension of an organization: its keys and tokens work again.

    \b
      tenantry admin resume acme
    """
    tenant = operator.resume(org_id, reason)
    report(tenant, f"Resumed {tenant.id} {operator.where}: its credentials work.", as_json=as_json)


@click.command("end-tenant", cls=OperatorCommand)
@org_argument
@reason_option
@yes_option
@json_option()
def end_tenant(
    operator: Operator, *, org_id: str, reason: str | None, yes: bool, as_json: bool
) -> None:
    """End an organization: its members lose access and its keys end at once.

    Its data can be exported for 30 days (`tenantry admin export-tenant`); then tenantry deletes it.
    A subscription goes on at the payment provider: cancel it there. You cannot undo this.

    \b
      tenantry admin export-tenant acme >acme.json
      tenantry admin end-tenant acme
    """
    if not yes:
        described = _described(operator.show_tenant(org_id))
        confirm(f"End {described} {operator.where}? Its members and keys lose access now.")
    operator.end_tenant(org_id, reason)
    outcome = {"id": org_id, "status": "ended"}
    done = f"Ended {org_id} {operator.where}. Its data can be exported for 30 days."
    report(outcome, done, as_json=as_json)


@click.command("export-tenant", cls=OperatorCommand)
@org_argument
def export_tenant(operator: Operator, *, org_id: str) -> None:
    """Print all data of an organization as one JSON document, except key digests and raw event
    bodies.

    Works for 30 days after its end, too. The audit trail records the export.

    \b
      tenantry admin export-tenant acme >acme.json
    """
    print_json(operator.export_tenant(org_id))


@click.command("verify-owner-address", cls=OperatorCommand)
@org_argument
def verify_owner_address(operator: Operator, *, org_id: str) -> None:
    """Record that an organization's owner address is verified, and print the address.

    Security notices go to the address from then on, without a confirmation mail.

    \b
      tenantry admin verify-owner-address acme
    """
    click.echo(shown(operator.verify_owner_address(org_id)))


def _described(tenant: ManagedTenant) -> str:
    return f"{tenant.id} ({tenant.name}, plan {tenant.plan})"


def _tenant_columns(of: str = "") -> list[Column]:
    """Make the columns of a tenant, which is the row, or its field ``of``."""
    named = {
        "id": f"{of}id",
        "name": f"{of}name",
        "plan": f"{of}plan",
        "subscription": f"{of}subscription_status",
    }
    return [
        *columns(**named, loose="name"),
        Column("LIMITS OF", f"{of}access", _limits_of),
        Column("SUSPENDED", f"{of}suspended", _yes_or_dash),
    ]


def _yes_or_dash(flag: bool) -> str:  # noqa: FBT001  # a value
    return "yes" if flag else "-"


def _limits_of(access: TenantAccess) -> str:
    """Return the plan whose limits count: the state "none" would read as if a tenant on the free
    plan were locked out.
    """
    return f"{access.plan} (grace)" if access.state == "grace" else access.plan


def _found_by(match: TenantMatch) -> str:
    if match.key is None:
        return f"{match.found_by.replace('_', ' ')} {match.given}"
    return f"{match.key.id} ({match.key.start}...{match.key.last4}, {match.key.status})"


_LOOKED_FOR: Final = (
    "the id of an organization, a customer, a key or a member, the address of an owner or a member, "
    "a member's name, and the ends of keys"
)
_TENANT_COLUMNS: Final = (
    *_tenant_columns(),
    Column("OWNER'S ADDRESS", "owner_email", loose=True),
    Column("CUSTOMER", "stripe_customer_id", wide=True),
    Column("CREATED (UTC)", "created_at", minute, wide=True),
)
_MATCH_COLUMNS: Final = (
    *_tenant_columns("tenant."),
    Column("FOUND BY", _found_by, loose=True),
    Column("OWNER'S ADDRESS", "tenant.owner_email", wide=True),
)
