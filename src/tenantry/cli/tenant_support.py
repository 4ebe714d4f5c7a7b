"""The commands of ``tenantry admin`` for support: find tenants, keys and events, revoke a key,
suspend a tenant.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

import click
import msgspec

from tenantry.accounts.tenant_directory import TenantMatch
from tenantry.accounts.tenant_directory_store import TenantFilter
from tenantry.billing.unplaced_events import UnplacedEvents
from tenantry.cli import output
from tenantry.cli.database import on_database
from tenantry.cli.operator_services import operator_services
from tenantry.cli.options import json_option, limit_option, yes_option
from tenantry.cli.output import (
    NOT_FOUND,
    Column,
    CommandError,
    ago,
    columns,
    confirm,
    minute,
    report,
    say,
    shown,
)
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.db.pagination import Page
from tenantry.domain.access import TenantAccess
from tenantry.domain.api_keys import ApiKey, is_secret_of_any
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.errors import LastOwnerError
from tenantry.domain.plans import AccessState
from tenantry.settings import Settings

T = TypeVar("T")
ReadPage = Callable[[int, str | None], Awaitable[Page[T]]]

_PAGE: Final = 100
_json_lines: Final = json_option("Print one line of JSON each.")


def _text(text: str) -> str:
    """Check a search text. Raises `click.BadParameter` for a whole secret, which it does not
    repeat.
    """
    if is_secret_of_any(text):
        raise click.BadParameter(
            "this is a whole secret: pass its first or last four characters alone"
        )
    if len(text) > 200 or not text.isprintable():  # noqa: PLR2004  # as the API's
        raise click.BadParameter("must be at most 200 printable characters")
    return text


@click.command("list-tenants", short_help="List tenants, with filters and search.")
@click.option(
    "--search",
    type=_text,
    metavar="TEXT",
    help="Part of the name, id, owner's address or a customer's id.",
)
@click.option(
    "--plan",
    type=_text,
    metavar="PLAN",
    help="Only tenants on this plan.",
)
@click.option(
    "--status",
    type=_text,
    metavar="STATUS",
    help="Only tenants whose subscription has this status.",
)
@click.option(
    "--access",
    type=click.Choice(["full", "grace", "none"]),
    help="Only tenants with this access now; none means the limits of the free plan.",
)
@click.option(
    "--suspended/--not-suspended", default=None, help="Only suspended tenants, or only the others."
)
@limit_option
@_json_lines
def list_tenants(
    *,
    search: str | None,
    plan: str | None,
    status: str | None,
    access: AccessState | None,
    suspended: bool | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List tenants, the newest first; ended ones are left out. Options together narrow the list.

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

    async def read(settings: Settings, database: Database) -> None:
        directory = operator_services(settings, database).directory
        tenants = items_of(
            lambda number, cursor: directory.list_page(wanted, number, cursor), limit
        )
        await print_each(
            tenants,
            _TENANT_COLUMNS,
            "No tenant matches.",
            as_json=as_json,
        )

    on_database(read)


@click.command("find", short_help="Find a tenant by customer, address or key.")
@click.argument("text", type=_text)
@_json_lines
def find(text: str, *, as_json: bool) -> None:
    """Find a tenant by a customer, the owner's address, or a key: its id, or four characters of an
    end of its secret.

    TEXT may also be a tenant's id, and a key's characters may be as in logs: svc_live_AbCd...wxyz.
    Exits with 5 if nothing is found. For parts of names use `tenantry admin list-tenants --search`.

    \b
      tenantry admin find cus_NffrFeUfNV2Hib
      tenantry admin find ada@acme.example
      tenantry admin find wxyz
    """
    matches = on_database(
        lambda settings, database: operator_services(settings, database).directory.find(text)
    )
    if not matches:
        raise CommandError(
            f"Nothing has the id, customer, owner's address or key {text}.", NOT_FOUND
        )
    if not as_json:
        output.print_table(matches, _MATCH_COLUMNS)
        return
    for match in matches:
        click.echo(_encoded(match))


@click.command("revoke-key", short_help="Revoke an API key of any tenant.")
@click.argument("key_id", metavar="KEY", type=_text)
@click.option("--force", is_flag=True, help="Also the last OWNER key of a tenant without an owner.")
@yes_option
@json_option()
def revoke_key(
    key_id: str,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Revoke an API key of any tenant: the very next request with it is rejected. You cannot undo
    that.

    KEY is the key's id; `tenantry admin find` finds it by what a log shows. A key that is revoked
    already is no error.

    \b
      tenantry admin revoke-key key_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """

    async def revoke(settings: Settings, database: Database) -> ApiKey:
        keys = operator_services(settings, database).operator_keys
        if not yes:
            confirm(f"Revoke {_described(await keys.get(key_id))}?")
        try:
            return await keys.revoke(BY_OPERATOR, key_id, force=force)
        except LastOwnerError:
            raise CommandError(
                "This is the last OWNER key of a tenant without an owner. Create another first, or pass --force."
            ) from None

    key = on_database(revoke)
    report(key, f"Revoked {key.id} of {key.org_id}.", as_json=as_json)


@click.command("suspend", short_help="Reject all credentials of a tenant.")
@click.argument("org_id", metavar="ORG")
@json_option()
def suspend(org_id: str, *, as_json: bool) -> None:
    """Suspend a tenant: its keys and tokens are rejected with 403 org_suspended until you resume
    it.

    Billing events still count.

    \b
      tenantry admin suspend acme
    """
    _set_suspended(org_id, suspended=True, as_json=as_json)


@click.command("resume", short_help="End the suspension of a tenant.")
@click.argument("org_id", metavar="ORG")
@json_option()
def resume(org_id: str, *, as_json: bool) -> None:
    """End the suspension of a tenant: its keys and tokens work again.

    \b
      tenantry admin resume acme
    """
    _set_suspended(org_id, suspended=False, as_json=as_json)


@click.command("parked-events", short_help="List events that belong to no tenant.")
@limit_option
@_json_lines
def parked_events(*, limit: int | None, as_json: bool) -> None:
    """List provider events that belong to no tenant, the last received first, with the command that
    places each.

    These are the parked events, which wait up to 30 days for their tenant or customer, and those of
    the last 30 days that name neither a tenant nor a linked customer, or are invalid. Replace the
    words in capitals in a command.

    \b
      tenantry admin parked-events
    """

    async def read(_: Settings, database: Database) -> None:
        events = items_of(UnplacedEvents(database, system_clock).list_page, limit)
        await print_each(
            events,
            _EVENT_COLUMNS,
            "Every event belongs to a tenant.",
            as_json=as_json,
        )

    on_database(read)


def _set_suspended(org_id: str, *, suspended: bool, as_json: bool) -> None:
    tenant = on_database(
        lambda settings, database: operator_services(settings, database).tenants.suspend(
            BY_OPERATOR, org_id, suspended=suspended
        )
    )
    done = f"Resumed {tenant.id}: its credentials work."
    if suspended:
        done = f"Suspended {tenant.id}: its credentials are rejected."
    report(tenant, done, as_json=as_json)


async def items_of(read: ReadPage[T], limit: int | None) -> AsyncIterator[T]:
    """Yield the items of all pages, at most ``limit``."""
    left = sys.maxsize if limit is None else limit
    cursor = None
    while left > 0:
        page = await read(min(left, _PAGE), cursor)
        for item in page.data:
            yield item
        left -= len(page.data)
        cursor = page.next_cursor
        if cursor is None:
            return


async def print_each(
    items: AsyncIterator[T],
    table: Sequence[Column],
    nothing: str,
    *,
    as_json: bool,
) -> None:
    """Print items as lines of JSON as they come, or all as a table; ``nothing`` is the message if
    there are none.
    """
    rows = []
    async for item in items:
        if as_json:
            click.echo(_encoded(item))
        else:
            rows.append(item)
    if not as_json and not output.print_table(rows, table):
        say(nothing)


def _encoded(item: Any) -> str:  # noqa: ANN401  # any record
    return output.json_text(msgspec.json.encode(item))


def _tenant_columns(of: str = "") -> list[Column]:
    """Make the columns of a tenant, which is the row, or its field ``of``."""
    is_suspended = attrgetter(f"{of}suspended")
    access = attrgetter(f"{of}access")
    named = {
        "id": f"{of}id",
        "name": f"{of}name",
        "plan": f"{of}plan",
        "subscription": f"{of}subscription_status",
    }
    return [
        *columns(**named, loose="name"),
        Column("LIMITS OF", lambda row: _limits_of(access(row))),
        Column("SUSPENDED", lambda row: "yes" if is_suspended(row) else "-"),
    ]


def _limits_of(access: TenantAccess) -> str:
    """Return the plan whose limits count: the state "none" would read as if a tenant on the free
    plan were locked out.
    """
    return f"{access.plan} (grace)" if access.state == "grace" else access.plan


def _described(key: ApiKey) -> str:
    used = ago(key.last_used_at, system_clock())
    return (
        f'"{key.name}" of {key.org_id} ({key.start}...{key.last4}), {key.status}, last used {used}'
    )


def _found_by(match: TenantMatch) -> str:
    if match.key is None:
        return f"{match.found_by} {match.given}"
    return f"{match.key.id} ({match.key.start}...{match.key.last4}, {match.key.status})"


_TENANT_COLUMNS: Final = (
    *_tenant_columns(),
    Column("CUSTOMER", lambda tenant: shown(tenant.stripe_customer_id), wide=True),
    Column("OWNER'S ADDRESS", lambda tenant: tenant.owner_email, wide=True),
    Column("CREATED (UTC)", lambda tenant: minute(tenant.created_at), wide=True),
)
_MATCH_COLUMNS: Final = (
    *_tenant_columns("tenant."),
    Column("FOUND BY", _found_by, loose=True),
)
_EVENT_COLUMNS: Final = (
    Column("RECEIVED (UTC)", lambda event: minute(event.received_at)),
    *columns("id", "type", "reason", loose="reason"),
    Column("PLACE IT WITH", lambda event: shown(event.command)),
)
COMMANDS: Final = (list_tenants, find, revoke_key, suspend, resume, parked_events)
