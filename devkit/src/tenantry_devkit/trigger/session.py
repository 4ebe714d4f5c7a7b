"""One run of `tenantry trigger`: its options, its tools, the tenant it acts on, and its output."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import click
import httpx2
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.output import NOT_FOUND, fail, printable, shown
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import Plan
from tenantry.domain.tenants import Tenant
from tenantry_devkit.local.endpoint import Answer, Endpoint
from tenantry_devkit.local.samples import Subject, customer_of
from tenantry_devkit.local.service import InboxWatch, ServiceReader, Sight


class TriggerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    what: str | None
    tenant: str | None
    plan: str
    status: str | None
    overrides: tuple[str, ...]
    times: int | None
    shape: str
    mischief: frozenset[str]
    seed: int | None
    forward_to: str | None
    remote: bool
    sign_as: str
    dry_run: bool
    as_json: bool


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What events are made and sent with. ``inbox`` is the demo's, where there is one."""

    options: TriggerOptions
    policy: BillingPolicy
    plan: Plan
    prices: dict[str, int]
    endpoint: Endpoint
    reader: ServiceReader
    client: httpx2.AsyncClient
    secret: Secret
    inbox: InboxWatch | None
    tenant: str | None

    @property
    def price(self) -> str:
        """The price of the plan that was chosen."""
        return self.plan.stripe_price_ids[0]

    async def tenant_id(self) -> str:
        """The tenant that is meant; a usage error where nothing says which."""
        tenant = self.tenant or await self.reader.own_tenant()
        if tenant is None:
            raise click.UsageError("Say which tenant: --tenant ORG, or by a key of its own in TENANTRY_API_KEY.")
        return tenant

    def subject(self, tenant_id: str, sight: Sight) -> Subject:
        """Whom events about this tenant are about: its own customer, where it has one."""
        known = sight.tenant.stripe_customer_id if sight.tenant else None
        return Subject(tenant_id, known or customer_of(tenant_id), self.price, self.prices[self.price])


def first_second(sight: Sight, wished: int) -> int:
    """The first second for new events: the one wished for, or a later one that comes after all of the ledger."""
    newest = int(sight.newest.timestamp()) + 1 if sight.newest else 0
    return max(wished, newest)


def now() -> int:
    """The present second."""
    return int(system_clock().timestamp())


@asynccontextmanager
async def tenant_for(tools: Tools, kind: str) -> AsyncIterator[tuple[str, Sight]]:
    """The tenant that was named or else, for the operator, a new one, which is ended after the block.

    A usage error without either. Ends the command where there is no such tenant.
    """
    if tools.tenant is None and tools.reader.is_operator:
        tenant_id = f"{kind}-{secrets.token_hex(4)}"
        await tools.reader.make_tenant(
            tenant_id, tenant_id.capitalize(), f"owner@{tenant_id}.example", customer_of(tenant_id)
        )
        try:
            yield tenant_id, await tools.reader.look(tenant_id)
        finally:
            await tools.reader.end_tenant(tenant_id)
        return
    if tools.tenant is None:
        raise click.UsageError(
            f"Say which tenant: --tenant ORG. A {kind} changes it. (With OPERATOR_TOKEN it has a tenant of its own.)"
        )
    tenant_id = tools.tenant
    sight = await tools.reader.look(tenant_id)
    if sight.is_missing:
        fail(f"There is no tenant {tenant_id}.", NOT_FOUND)
    if sight.tenant is None:
        click.echo(f"The tenant cannot be shown: {sight.trouble}.", err=True)
    yield tenant_id, sight


_UNTOLD: Final = frozenset({"id", "name", "owner_id", "created_at", "updated_at"})
_BAD_SIGNATURE: Final = "Invalid signature"


class Change(msgspec.Struct, frozen=True):
    """A field of a tenant record that is another now."""

    field: str
    before: object
    after: object


def changes(before: Tenant | None, after: Tenant | None) -> list[Change]:
    """The fields of a record that events have changed; none where it cannot be seen."""
    if before is None or after is None:
        return []
    names = zip(Tenant.__struct_fields__, Tenant.__struct_encode_fields__, strict=True)
    pairs = ((shown_as, getattr(before, name), getattr(after, name)) for name, shown_as in names if name not in _UNTOLD)
    return [Change(name, old, new) for name, old, new in pairs if old != new]


def change_lines(changed: list[Change]) -> Iterator[Text]:
    """Each change in a line, before and after beneath each other."""
    width = max((len(change.field) for change in changed), default=0)
    olds = [shown(change.before) for change in changed]  # type: ignore[arg-type]
    middle = max(map(len, olds), default=0)
    for change, old in zip(changed, olds, strict=True):
        new = shown(change.after)  # type: ignore[arg-type]
        yield Text.assemble(f"{change.field:{width}}  ", (f"{old:{middle}}", "dim"), " -> ", (new, "bold cyan"))


def status_text(answer: Answer) -> Text:
    """An answer's status in its colour, and how long it took."""
    style = "green" if answer.is_good else "bold red"
    return Text.assemble((str(answer.status), style), f"  {answer.milliseconds:,} ms")


def refusal_lines(answer: Answer, sign_as: str) -> Iterator[Text]:
    """What a service said that did not take an event, and what may be done about it."""
    yield Text(printable(" ".join(answer.text.split())) or "(no text)", "red")
    if answer.text == _BAD_SIGNATURE:
        other = "--sign-as listener" if sign_as == "service" else "--sign-as service"
        yield Text(f"The service checks with another secret than this one. Perhaps {other}?", "dim")


def write(console: Console, text: Text, indent: int = 0, lead: Text | None = None) -> None:
    """Write a text, on a terminal within its width; ``lead`` stands before its first line, within the indent."""
    room = max(console.width - indent, 20)
    margin = Text(" " * indent)
    for number, part in enumerate(text.wrap(console, room) if console.is_terminal else [text]):
        part.rstrip()
        before = margin
        if number == 0 and lead is not None:
            before = lead + " " * (indent - lead.cell_len)
        console.print(before + part, soft_wrap=True)
