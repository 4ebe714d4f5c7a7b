"""One run of `tenantry trigger`: its options, the service and the inbox that it reads, and its
output.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Final

import click
import httpx2
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.output import NOT_FOUND, CommandError, json_text, printable, shown
from tenantry.common.clock import system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.common.secret import Secret
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.names import display_text
from tenantry.domain.plans import Plan
from tenantry.domain.tenants import Tenant
from tenantry_devkit.local.endpoint import BAD_SIGNATURE, Endpoint
from tenantry_devkit.local.samples import (
    EventSubject,
    Json,
    OverrideError,
    customer_of,
    override,
    sample_event,
)
from tenantry_sdk import AsyncTenantry, BillingEvent
from tenantry_sdk.errors import NotFoundError, PermissionDeniedError

STORY: Final = "story:"
_UNCHANGED_BY_EVENTS: Final = frozenset({"id", "name", "owner_id", "created_at", "updated_at"})
_MAIL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_PER_PAGE: Final = 100


class TriggerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the command line."""

    what: str | None
    tenant: str | None
    plan: str
    status: str | None
    subscription: str | None
    overrides: tuple[str, ...]
    times: int | None
    shape: str
    forward_to: str | None
    remote: bool
    sign_as: str
    dry_run: bool
    as_json: bool

    @property
    def is_story(self) -> bool:
        return self.what is not None and self.what.startswith(STORY)


class InboxMessage(msgspec.Struct, frozen=True):
    id: str
    to: str
    subject: str
    date: datetime
    text: str


class InboxPoller:
    """Finds new mail in the demo's inbox at ``base``; an inbox that cannot be reached counts as
    empty.
    """

    def __init__(self, client: httpx2.AsyncClient, base: str) -> None:
        self._client = client
        self._url = f"{base}/inbox/messages.json"
        self._known: set[str] = set()

    async def begin(self) -> None:
        """Mark all present messages as known."""
        await self._unseen()

    async def new_messages(self, tenant_name: str, *, count: int) -> list[InboxMessage]:
        """Wait up to ten seconds for ``count`` new messages that name the tenant; return them
        oldest first.
        """
        found: list[InboxMessage] = []
        quoted = f'"{display_text(tenant_name)}"'
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAIL_SECONDS):
                while len(found) < count:
                    found += [each for each in await self._unseen() if quoted in each.text]
                    if len(found) < count:
                        await asyncio.sleep(_POLL_SECONDS)
        return found

    async def _unseen(self) -> list[InboxMessage]:
        """Return the new messages, oldest first, and mark them as known."""
        new = [each for each in await self._messages() if each.id not in self._known]
        self._known |= {message.id for message in new}
        return sorted(new, key=lambda message: message.id)

    async def _messages(self) -> list[InboxMessage]:
        with contextlib.suppress(httpx2.HTTPError, *NOT_JSON):
            response = await self._client.get(self._url)
            return msgspec.json.decode(response.content, type=list[InboxMessage])
        return []


class TenantView(msgspec.Struct, frozen=True):
    """A tenant's record and its whole ledger, unordered: None where the credentials cannot read it.

    ``problem`` says why the record is missing.
    """

    tenant: Tenant | None = None
    ledger: Sequence[BillingEvent] | None = None
    problem: str = ""
    is_missing: bool = False


class _Export(msgspec.Struct, rename="camel"):
    tenant: Tenant
    billing_events: list[BillingEvent]


class ServiceReader:
    """Reads tenants with the tenant's own API key, or else with the operator's token.

    The methods raise the errors of the SDK.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        base: str,
        *,
        api_key: Secret | None = None,
        operator: Secret | None = None,
    ) -> None:
        sdk = partial(
            AsyncTenantry,
            base_url=base,
            http_client=client,
            retries=0,
            allow_http=True,
        )
        self.operator = sdk(operator.reveal()) if operator is not None else None
        """The service as the operator, if there is a token."""
        self._own = sdk(api_key.reveal()) if api_key is not None else None
        self._own_id: str | None = None

    async def own_tenant(self) -> str | None:
        """Return the id of the API key's tenant; None without a key."""
        if self._own is not None and self._own_id is None:
            self._own_id = (await self._own.auth.whoami()).org_id
        return self._own_id

    async def tenant_view(self, tenant_id: str) -> TenantView:
        if self._own is not None and await self.own_tenant() == tenant_id:
            return await _own_view(self._own, tenant_id)
        if self.operator is None:
            return TenantView(
                problem="TENANTRY_API_KEY is not a key of this tenant, and OPERATOR_TOKEN is not set"
            )
        try:
            response = await self.operator.request("GET", f"/api/v1/tenants/{tenant_id}/export")
        except NotFoundError:
            return TenantView(problem=f"there is no tenant {tenant_id}", is_missing=True)
        export: _Export = response.parse(_Export)
        return TenantView(export.tenant, export.billing_events)


async def _own_view(sdk: AsyncTenantry, tenant_id: str) -> TenantView:
    """Return what the tenant's own key may read."""
    try:
        response = await sdk.request("GET", f"/api/v1/tenants/{tenant_id}")
    except PermissionDeniedError:
        return TenantView(problem="the API key lacks the scope tenants:read")
    ledger = None
    with contextlib.suppress(PermissionDeniedError):
        ledger = [event async for event in sdk.billing.events.list(limit=_PER_PAGE)]
    return TenantView(response.parse(Tenant), ledger)


class TriggerSession(msgspec.Struct, frozen=True, kw_only=True):
    """``inbox`` is the demo's, if it runs. ``prices`` are the catalog's, with an amount each."""

    options: TriggerOptions
    policy: BillingPolicy
    plan: Plan
    prices: dict[str, int]
    endpoint: Endpoint
    reader: ServiceReader
    inbox: InboxPoller | None
    console: Console

    @property
    def price(self) -> str:
        return self.plan.stripe_price_ids[0]

    def subject(self, tenant_id: str, view: TenantView) -> EventSubject:
        """Return what events are about: the tenant and its own customer, if it has one."""
        known = view.tenant.stripe_customer_id if view.tenant else None
        return EventSubject(
            tenant_id,
            known or customer_of(tenant_id),
            self.price,
            self.prices[self.price],
        )

    async def sample_events(self, subject: EventSubject, view: TenantView) -> AsyncIterator[Json]:
        """Yield the wanted number of events, a second apart, after the tenant's ledger, the last
        one of now.
        """
        options, number = self.options, self.options.times or 1
        start = first_second(view, current_second() - number + 1)
        event_type, status = options.what or "", options.status or "active"
        for created in range(start, start + number):
            event = await sample_event(
                event_type,
                subject,
                created=created,
                shape=options.shape,
                status=status,
                subscription_id=options.subscription,
            )
            try:
                override(event, options.overrides)
            except OverrideError as error:
                raise click.BadParameter(str(error), param_hint="--override") from None
            yield event

    @asynccontextmanager
    async def tenant_of_story(self) -> AsyncIterator[tuple[str, TenantView]]:
        """Give the named tenant, or else, for the operator, a new one that ends after the block."""
        tenant_id, operator = self.options.tenant, self.reader.operator
        if tenant_id is None and operator is not None:
            tenant_id = f"story-{secrets.token_hex(4)}"
            email, customer = f"owner@{tenant_id}.example", customer_of(tenant_id)
            await operator.tenants.put(
                tenant_id,
                name=tenant_id.capitalize(),
                owner_email=email,
                stripe_customer_id=customer,
            )
            try:
                yield tenant_id, await self.reader.tenant_view(tenant_id)
            finally:
                await operator.tenants.delete(tenant_id)
            return
        if tenant_id is None:
            raise click.UsageError(
                "Say which tenant: --tenant ORG. A story changes it. (With OPERATOR_TOKEN it creates its own tenant.)"
            )
        view = await self.reader.tenant_view(tenant_id)
        if view.is_missing:
            raise CommandError(f"There is no tenant {tenant_id}.", NOT_FOUND)
        if view.tenant is None:
            click.echo(f"The tenant cannot be shown: {view.problem}.", err=True)
        yield tenant_id, view

    def write(self, text: Text | str, indent: int = 0, *, style: str = "") -> None:
        write(
            self.console,
            Text(text, style) if isinstance(text, str) else text,
            indent,
        )

    def write_json(self, document: object, *, indent: int = 2) -> None:
        """Print JSON; ``indent`` 0 is for one line."""
        text = json_text(msgspec.json.encode(document))
        click.echo(msgspec.json.format(text, indent=indent) if indent else text)


def first_second(view: TenantView, wanted: int) -> int:
    """Return the first second for new events: ``wanted``, or a later one after the whole ledger."""
    return max([wanted, *(int(event.created.timestamp()) + 1 for event in view.ledger or ())])


def current_second() -> int:
    return int(system_clock().timestamp())


class FieldChange(msgspec.Struct, frozen=True):
    field: str
    before: object
    after: object


def changes(before: Tenant | None, after: Tenant | None) -> list[FieldChange]:
    """Return the fields of a tenant's record that events have changed; none for an unknown
    record.
    """
    if before is None or after is None:
        return []
    names = zip(Tenant.__struct_fields__, Tenant.__struct_encode_fields__, strict=True)
    found = [
        FieldChange(label, _value(before, name), _value(after, name))
        for name, label in names
        if name not in _UNCHANGED_BY_EVENTS
    ]
    return [change for change in found if change.before != change.after]


def _value(tenant: Tenant, name: str) -> object:
    """Return a field of the record; of the access its state, because the plan and status say the
    rest.
    """
    return tenant.access.state if name == "access" else getattr(tenant, name)


def change_lines(changed: list[FieldChange]) -> Iterator[Text]:
    rows = [(change.field, shown(change.before), shown(change.after)) for change in changed]  # type: ignore[arg-type]
    width, middle = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    for field, old, new in rows:
        yield Text.assemble(
            f"{field:{width}}  ",
            (f"{old:{middle}}", "dim"),
            " -> ",
            (new, "bold cyan"),
        )


def rejection_lines(answer: str, sign_as: str) -> Iterator[Text]:
    yield Text(printable(" ".join(answer.split())) or "(no text)", "red")
    if answer == BAD_SIGNATURE:
        other = "--sign-as listener" if sign_as == "service" else "--sign-as service"
        yield Text(f"The service checks signatures with another secret. Perhaps {other}?", "dim")


def write(console: Console, text: Text, indent: int = 0, lead: Text | None = None) -> None:
    """Print a text, on a terminal wrapped to its width; ``lead`` goes into the first line's
    indent.
    """
    margin = Text(" " * indent)
    lines = text.wrap(console, max(console.width - indent, 20)) if console.is_terminal else [text]
    for number, line in enumerate(lines):
        line.rstrip()
        before = (
            lead + " " * (indent - lead.cell_len) if lead is not None and number == 0 else margin
        )
        console.print(before + line, soft_wrap=True)
