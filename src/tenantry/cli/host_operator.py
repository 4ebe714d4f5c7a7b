"""The operator's calls on the database, on the service's host."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cached_property
from typing import TypeVar

import msgspec
from psycopg.conninfo import conninfo_to_dict

from tenantry.auth.usage import UsageService
from tenantry.billing.unplaced_events import UnplacedEvents
from tenantry.cli.database import (
    admin_settings,
    database,
    domain_errors,
    migrated,
    operator_values,
)
from tenantry.cli.operator import UsageQuestion, items_of
from tenantry.cli.operator_services import OperatorServices, operator_services
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.domain.api_keys import ApiKey, ApiKeyWithSecret, KeyTerms
from tenantry.domain.audit import BY_OPERATOR, AuditEvent, Author
from tenantry.domain.billing.customer_links import CustomerMove
from tenantry.domain.billing.explanation import BillingExplanation
from tenantry.domain.billing.unplaced_events import UnplacedEvent
from tenantry.domain.grants import Grant, GrantInput
from tenantry.domain.key_import import ApiKeyToImport, ImportedKeyCounts, ImportStatus
from tenantry.domain.outbound_events import FeedPage, parse_types
from tenantry.domain.permissions import operator_principal
from tenantry.domain.tenant_search import TenantFilter, TenantMatch
from tenantry.domain.tenants import ManagedTenant, TenantInput
from tenantry.domain.usage import UsageInterval, UsageReport, usage_query
from tenantry.domain.webhook_endpoints import ListedEndpoint, QueuedEvents, WebhookTest
from tenantry.outbound.events_store import EventFilter
from tenantry.outbound.feed import LONGEST_WAIT, ChangeFeed
from tenantry.settings import Settings
from tenantry_cli.output import OUT_OF_REACH

Result = TypeVar("Result")
Action = Callable[[OperatorServices], Awaitable[Result]]

_CHANGES_AT_ONCE = 100


class HostOperator:
    """An `Operator` on the database that the settings name. It connects at the first call."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    @cached_property
    def _values(self) -> dict[str, str]:
        values, _ = operator_values()
        return values

    @cached_property
    def _settings(self) -> Settings:
        return admin_settings(self._values)

    @cached_property
    def _settings_with_pepper(self) -> Settings:
        return admin_settings(self._values, needs_pepper=True)

    @cached_property
    def _conninfo(self) -> str:
        conninfo = self._stack.enter_context(database(self._values))
        migrated(conninfo, unreachable=OUT_OF_REACH)
        return conninfo

    @cached_property
    def _runner(self) -> asyncio.Runner:
        return self._stack.enter_context(asyncio.Runner())

    @cached_property
    def _database(self) -> Database:
        database = Database(self._conninfo, 1)
        self._runner.run(database.open())
        self._stack.callback(lambda: self._runner.run(database.close()))
        return database

    @cached_property
    def _services(self) -> OperatorServices:
        return operator_services(self._settings, self._database)

    @cached_property
    def _services_with_pepper(self) -> OperatorServices:
        settings = self._settings_with_pepper
        return operator_services(
            settings,
            self._database,
            peppers=settings.peppers,
            imported=settings.imported_key_pattern,
        )

    def _run(self, action: Action[Result], *, needs_pepper: bool = False) -> Result:
        """Run an action; one that makes keys needs the pepper."""
        services = self._services_with_pepper if needs_pepper else self._services

        async def run() -> Result:
            return await action(services)

        with domain_errors():
            return self._runner.run(run())

    @property
    def where(self) -> str:
        parts = conninfo_to_dict(self._conninfo)
        host = parts.get("host") or parts.get("hostaddr") or "this host"
        return f"in the database {parts.get('dbname') or parts.get('user') or ''} at {host}"

    @property
    def imported_key_pattern(self) -> re.Pattern[bytes] | None:
        return self._settings_with_pepper.imported_key_pattern

    @property
    def is_remote(self) -> bool:
        return False

    def find(self, text: str) -> list[TenantMatch]:
        return self._run(lambda services: services.directory.find(text))

    def list_tenants(self, wanted: TenantFilter, limit: int | None) -> Iterator[ManagedTenant]:
        return items_of(
            lambda most, cursor: self._run(
                lambda services: services.directory.list_page(wanted, most, cursor)
            ),
            limit,
        )

    def show_tenant(self, org_id: str) -> ManagedTenant:
        return self._run(lambda services: services.tenants.show(org_id))

    def create_tenant(self, org_id: str, wanted: TenantInput) -> ManagedTenant:
        tenant, _ = self._run(
            lambda services: services.tenants.put(BY_OPERATOR, org_id, wanted, only_new=True)
        )
        return tenant

    def suspend(self, org_id: str, reason: str | None) -> ManagedTenant:
        return self._set_suspended(org_id, reason, suspended=True)

    def resume(self, org_id: str, reason: str | None) -> ManagedTenant:
        return self._set_suspended(org_id, reason, suspended=False)

    def _set_suspended(self, org_id: str, reason: str | None, *, suspended: bool) -> ManagedTenant:
        author = _by_operator(reason)
        return self._run(
            lambda services: services.tenants.suspend(author, org_id, suspended=suspended)
        )

    def end_tenant(self, org_id: str, reason: str | None) -> None:
        author = _by_operator(reason)
        self._run(lambda services: services.tenants.delete(author, org_id))

    def export_tenant(self, org_id: str) -> object:
        return self._run(lambda services: services.tenants.export(BY_OPERATOR, org_id))

    def explain_tenant(self, org_id: str, limit: int) -> BillingExplanation:
        return self._run(lambda services: services.ledger.explain(org_id, limit))

    def verify_owner_address(self, org_id: str) -> str:
        address = self._run(lambda services: services.confirmations.verify(BY_OPERATOR, org_id))
        return address.email

    def create_key(self, org_id: str, terms: KeyTerms) -> ApiKeyWithSecret:
        principal = operator_principal(org_id)
        made = self._run(
            lambda services: services.api_keys.create(principal, BY_OPERATOR, terms, claim=None),
            needs_pepper=True,
        )
        return ApiKeyWithSecret(secret=made.secret, **msgspec.structs.asdict(made.record))

    def get_key(self, key_id: str) -> ApiKey:
        return self._run(lambda services: services.operator_keys.get(key_id))

    def revoke_key(self, key_id: str, reason: str | None, *, force: bool) -> ApiKey:
        author = _by_operator(reason)
        return self._run(
            lambda services: services.operator_keys.revoke(author, key_id, force=force)
        )

    def import_keys(
        self, org_id: str, algorithm: str, keys: Sequence[ApiKeyToImport], *, dry_run: bool
    ) -> list[ImportStatus]:
        async def run(services: OperatorServices) -> list[ImportStatus]:
            if dry_run:
                return await services.key_import.preview(org_id, algorithm, keys)
            done = await services.key_import.import_keys(BY_OPERATOR, org_id, algorithm, keys)
            return [result.status for result in done]

        return self._run(run, needs_pepper=True)

    def count_imported_keys(self) -> list[ImportedKeyCounts]:
        return self._run(lambda services: services.operator_keys.count_imported())

    def list_imported_keys(
        self, org_id: str, limit: int | None, *, unused: bool
    ) -> Iterator[ApiKey]:
        return items_of(
            lambda most, cursor: self._run(
                lambda services: services.operator_keys.list_imported(
                    org_id, most, cursor, unused=unused
                )
            ),
            limit,
        )

    def link_customer(self, customer: str, org_id: str) -> CustomerMove:
        return self._run(lambda services: services.links.link(BY_OPERATOR, customer, org_id))

    def move_customer(self, customer: str, org_id: str, reason: str | None) -> CustomerMove:
        author = _by_operator(reason)
        return self._run(lambda services: services.links.move(author, customer, org_id))

    def unlink_customer(self, customer: str, reason: str | None) -> CustomerMove:
        author = _by_operator(reason)
        return self._run(lambda services: services.links.unlink(author, customer))

    def list_parked_events(self, limit: int | None) -> Iterator[UnplacedEvent]:
        return items_of(
            lambda most, cursor: self._run(
                lambda _: UnplacedEvents(self._database, system_clock).list_page(most, cursor)
            ),
            limit,
        )

    def event_body(self, event_id: str) -> bytes:
        return self._run(lambda services: services.ledger.get_body(event_id))

    def list_grants(self, org_id: str) -> list[Grant]:
        return self._run(lambda services: services.grants.list_all(org_id))

    def set_grant(self, org_id: str, name: str, wanted: GrantInput) -> Grant:
        return self._run(lambda services: services.grants.put(BY_OPERATOR, org_id, name, wanted))

    def end_grant(self, org_id: str, name: str) -> Grant:
        return self._run(lambda services: services.grants.end(BY_OPERATOR, org_id, name))

    def usage(self, question: UsageQuestion) -> UsageReport:
        with domain_errors():
            wanted = usage_query(
                UsageInterval(question.interval),
                question.since,
                question.until,
                system_clock(),
                group=question.group,
                org_id=question.org_id,
            )
        return self._run(lambda _: UsageService(self._database, system_clock).read_any(wanted))

    def audit_trail(self, since: datetime | None) -> Iterator[bytes]:
        parts = self._services.directory.export_trail(since)
        nothing: list[AuditEvent] | None = None
        encoder = msgspec.json.Encoder()
        while (part := self._run(lambda _: anext(parts, nothing))) is not None:
            yield encoder.encode_lines(part)

    def changes(
        self, after: str | None, types: str | None, org_id: str | None, *, waits: bool
    ) -> FeedPage:
        with domain_errors():
            wanted = EventFilter(parse_types(types).types(), org_id)
        wait = LONGEST_WAIT if waits else timedelta()
        return self._run(lambda _: self._feed.read(after, wanted, _CHANGES_AT_ONCE, wait))

    @cached_property
    def _feed(self) -> ChangeFeed:
        return ChangeFeed(self._database)

    def list_webhooks(self) -> list[ListedEndpoint]:
        return self._run(lambda services: services.webhooks.list_endpoints())

    def test_webhook(self, name: str) -> WebhookTest:
        return self._run(lambda services: services.webhooks.test(BY_OPERATOR, name))

    def enable_webhook(self, name: str) -> QueuedEvents:
        return self._run(lambda services: services.webhooks.enable(BY_OPERATOR, name))

    def resend_webhook(
        self, name: str, *, event: str | None, since: datetime | None
    ) -> QueuedEvents:
        return self._run(
            lambda services: services.webhooks.resend(BY_OPERATOR, name, event=event, since=since)
        )


def _by_operator(reason: str | None) -> Author:
    """Return the operator with a reason. Raises `CommandError`."""
    with domain_errors():
        return BY_OPERATOR.because(reason)
