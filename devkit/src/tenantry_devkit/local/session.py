"""One run of `tenantry trigger`: its options, its clients, the tenant it acts on, and its output."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import click
import httpx2
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.output import NOT_FOUND, fail, json_text, printable, shown
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import Plan
from tenantry.domain.tenants import Tenant
from tenantry_devkit.local.endpoint import Endpoint, EndpointResponse
from tenantry_devkit.local.samples import EventSubject, customer_of
from tenantry_devkit.local.service import InboxPoller, ServiceReader, TenantView

WEBHOOK_SECRET: Final = "PROVIDER_WEBHOOK_SECRET"  # noqa: S105  # a variable's name
BAD_SIGNATURE: Final = "Invalid signature"
STORY: Final = "story:"
_UNCHANGED_BY_EVENTS: Final = frozenset({"id", "name", "owner_id", "created_at", "updated_at"})


class TriggerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the command line. ``chaos`` holds kinds of chaos."""

    what: str | None
    tenant: str | None
    plan: str
    status: str | None
    overrides: tuple[str, ...]
    times: int | None
    shape: str
    chaos: frozenset[str]
    seed: int | None
    forward_to: str | None
    remote: bool
    sign_as: str
    dry_run: bool
    as_json: bool


class TriggerSession(msgspec.Struct, frozen=True, kw_only=True):
    """``inbox`` is the demo's, if it runs. ``prices`` are the catalog's, with an amount each."""

    options: TriggerOptions
    policy: BillingPolicy
    plan: Plan
    prices: dict[str, int]
    endpoint: Endpoint
    reader: ServiceReader
    client: httpx2.AsyncClient
    secret: Secret
    inbox: InboxPoller | None
    tenant: str | None
    console: Console

    @property
    def price(self) -> str:
        return self.plan.stripe_price_ids[0]

    async def tenant_id(self) -> str:
        """Return the tenant to act on; a usage error if none is named."""
        tenant = self.tenant or await self.reader.own_tenant()
        if tenant is None:
            raise click.UsageError("Say which tenant: --tenant ORG, or a tenant's own key in TENANTRY_API_KEY.")
        return tenant

    def subject(self, tenant_id: str, view: TenantView) -> EventSubject:
        """Return what events are about: the tenant and its own customer, if it has one."""
        known = view.tenant.stripe_customer_id if view.tenant else None
        return EventSubject(tenant_id, known or customer_of(tenant_id), self.price, self.prices[self.price])

    def write(self, text: Text | str, indent: int = 0, *, style: str = "") -> None:
        write(self.console, Text(text, style) if isinstance(text, str) else text, indent)

    def write_json(self, document: object, *, indent: int = 2) -> None:
        """Print JSON; ``indent`` 0 is for one line."""
        text = json_text(msgspec.json.encode(document))
        click.echo(msgspec.json.format(text, indent=indent) if indent else text)


def first_second(view: TenantView, wanted: int) -> int:
    """Return the first second for new events: ``wanted``, or a later one after the whole ledger."""
    return max(wanted, int(view.newest.timestamp()) + 1 if view.newest else 0)


def current_second() -> int:
    return int(system_clock().timestamp())


@asynccontextmanager
async def tenant_for(session: TriggerSession, kind: str) -> AsyncIterator[tuple[str, TenantView]]:
    """Give the named tenant, or else, for the operator, a new one that ends after the block."""
    reader, tenant_id = session.reader, session.tenant
    if tenant_id is None and reader.is_operator:
        tenant_id = f"{kind}-{secrets.token_hex(4)}"
        owner_email = f"owner@{tenant_id}.example"
        await reader.create_tenant(tenant_id, tenant_id.capitalize(), owner_email, customer_of(tenant_id))
        try:
            yield tenant_id, await reader.tenant_view(tenant_id)
        finally:
            await reader.end_tenant(tenant_id)
        return
    if tenant_id is None:
        raise click.UsageError(
            f"Say which tenant: --tenant ORG. A {kind} changes it. (With OPERATOR_TOKEN it creates its own tenant.)"
        )
    view = await reader.tenant_view(tenant_id)
    if view.is_missing:
        fail(f"There is no tenant {tenant_id}.", NOT_FOUND)
    if view.tenant is None:
        click.echo(f"The tenant cannot be shown: {view.problem}.", err=True)
    yield tenant_id, view


class FieldChange(msgspec.Struct, frozen=True):
    field: str
    before: object
    after: object


def changes(before: Tenant | None, after: Tenant | None) -> list[FieldChange]:
    """Return the fields of a tenant's record that events have changed; none for an unknown record."""
    if before is None or after is None:
        return []
    names = zip(Tenant.__struct_fields__, Tenant.__struct_encode_fields__, strict=True)
    found = (FieldChange(label, getattr(before, name), getattr(after, name)) for name, label in names
             if name not in _UNCHANGED_BY_EVENTS)  # fmt: skip
    return [change for change in found if change.before != change.after]


def change_lines(changed: list[FieldChange]) -> Iterator[Text]:
    rows = [(change.field, shown(change.before), shown(change.after)) for change in changed]  # type: ignore[arg-type]
    width, middle = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    for field, old, new in rows:
        yield Text.assemble(f"{field:{width}}  ", (f"{old:{middle}}", "dim"), " -> ", (new, "bold cyan"))


def rejection_lines(response: EndpointResponse, sign_as: str) -> Iterator[Text]:
    yield Text(printable(" ".join(response.text.split())) or "(no text)", "red")
    if response.text == BAD_SIGNATURE:
        other = "--sign-as listener" if sign_as == "service" else "--sign-as service"
        yield Text(f"The service checks signatures with another secret. Perhaps {other}?", "dim")


def write(console: Console, text: Text, indent: int = 0, lead: Text | None = None) -> None:
    """Print a text, on a terminal wrapped to its width; ``lead`` goes into the first line's indent."""
    margin = Text(" " * indent)
    lines = text.wrap(console, max(console.width - indent, 20)) if console.is_terminal else [text]
    for number, line in enumerate(lines):
        line.rstrip()
        before = lead + " " * (indent - lead.cell_len) if lead is not None and number == 0 else margin
        console.print(before + line, soft_wrap=True)
