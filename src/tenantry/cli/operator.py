"""What the commands of the operator ask: one interface, over HTTP or on the database."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from tenantry.domain.api_keys import ApiKey, ApiKeyWithSecret, KeyTerms
from tenantry.domain.billing.customer_links import CustomerMove
from tenantry.domain.billing.explanation import BillingExplanation
from tenantry.domain.billing.unplaced_events import UnplacedEvent
from tenantry.domain.grants import Grant, GrantInput
from tenantry.domain.key_import import ApiKeyToImport, ImportedKeyCounts, ImportStatus
from tenantry.domain.outbound_events import FeedPage
from tenantry.domain.tenant_search import TenantFilter, TenantMatch
from tenantry.domain.tenants import ManagedTenant, TenantInput
from tenantry.domain.usage import OperatorGroup, UsageReport
from tenantry.domain.webhook_endpoints import ListedEndpoint, QueuedEvents, WebhookTest
from tenantry_cli.output import CommandError

T = TypeVar("T")

TOKEN: Final = "TENANTRY_OPERATOR_TOKEN"  # noqa: S105  # a variable's name
_LISTED_AT_ONCE: Final = 100


class OperatorError(CommandError):
    """The service, or a use case on the database, rejects a call: with its ``code``, and the faults
    of what was given, each with its place.
    """

    def __init__(
        self,
        message: str,
        exit_code: int,
        code: str,
        faults: Sequence[tuple[str, str]] = (),
    ) -> None:
        detail = "; ".join(f"{where}: {fault}" for where, fault in faults)
        super().__init__(detail or message, exit_code)
        self.code = code
        self.faults = faults


class UsageQuestion(NamedTuple):
    """Which counts of requests the operator asks for."""

    since: datetime | None
    until: datetime | None
    interval: Literal["hour", "day"]
    group: OperatorGroup
    org_id: str | None


class AnyPage(Protocol[T]):
    """A page of a list."""

    @property
    def data(self) -> list[T]: ...
    @property
    def next_cursor(self) -> str | None: ...


class Operator(Protocol):
    """The operator's calls. They raise `CommandError`; lists are read as they are iterated over."""

    @property
    def where(self) -> str:
        """Where the calls act, as the end of a phrase: ``at https://accounts.example.com``."""

    @property
    def imported_key_pattern(self) -> re.Pattern[bytes] | None:
        """What keys in plain text must match; None for anything, or if only the service knows.

        Raises `CommandError`.
        """

    @property
    def is_remote(self) -> bool:
        """Whether the calls go to a service."""

    def find(self, text: str) -> list[TenantMatch]: ...
    def list_tenants(self, wanted: TenantFilter, limit: int | None) -> Iterator[ManagedTenant]: ...
    def show_tenant(self, org_id: str) -> ManagedTenant: ...
    def create_tenant(self, org_id: str, wanted: TenantInput) -> ManagedTenant: ...
    def suspend(self, org_id: str, reason: str | None) -> ManagedTenant: ...
    def resume(self, org_id: str, reason: str | None) -> ManagedTenant: ...
    def end_tenant(self, org_id: str, reason: str | None) -> None: ...
    def export_tenant(self, org_id: str) -> object: ...
    def explain_tenant(self, org_id: str, limit: int) -> BillingExplanation: ...
    def verify_owner_address(self, org_id: str) -> str: ...

    def create_key(self, org_id: str, terms: KeyTerms) -> ApiKeyWithSecret: ...
    def get_key(self, key_id: str) -> ApiKey: ...
    def revoke_key(self, key_id: str, reason: str | None, *, force: bool) -> ApiKey: ...
    def import_keys(
        self, org_id: str, algorithm: str, keys: Sequence[ApiKeyToImport], *, dry_run: bool
    ) -> list[ImportStatus]: ...
    def count_imported_keys(self) -> list[ImportedKeyCounts]: ...
    def list_imported_keys(
        self, org_id: str, limit: int | None, *, unused: bool
    ) -> Iterator[ApiKey]: ...

    def link_customer(self, customer: str, org_id: str) -> CustomerMove: ...
    def move_customer(self, customer: str, org_id: str, reason: str | None) -> CustomerMove: ...
    def unlink_customer(self, customer: str, reason: str | None) -> CustomerMove: ...
    def list_parked_events(self, limit: int | None) -> Iterator[UnplacedEvent]: ...
    def event_body(self, event_id: str) -> bytes: ...

    def list_grants(self, org_id: str) -> list[Grant]: ...
    def set_grant(self, org_id: str, name: str, wanted: GrantInput) -> Grant: ...
    def end_grant(self, org_id: str, name: str) -> Grant: ...

    def usage(self, question: UsageQuestion) -> UsageReport: ...
    def audit_trail(self, since: datetime | None) -> Iterator[bytes]: ...
    def changes(
        self, after: str | None, types: str | None, org_id: str | None, *, waits: bool
    ) -> FeedPage: ...

    def list_webhooks(self) -> list[ListedEndpoint]: ...
    def test_webhook(self, name: str) -> WebhookTest: ...
    def enable_webhook(self, name: str) -> QueuedEvents: ...
    def resend_webhook(
        self, name: str, *, event: str | None, since: datetime | None
    ) -> QueuedEvents: ...


def items_of(read: Callable[[int, str | None], AnyPage[T]], limit: int | None) -> Iterator[T]:
    """Yield the items of all pages, at most ``limit``; ``read`` gets how many, and a cursor."""
    cursor = None
    left = limit
    while left is None or left > 0:
        page = read(_LISTED_AT_ONCE if left is None else min(left, _LISTED_AT_ONCE), cursor)
        yield from page.data
        left = None if left is None else left - len(page.data)
        cursor = page.next_cursor
        if cursor is None:
            return
