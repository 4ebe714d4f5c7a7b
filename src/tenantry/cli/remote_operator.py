"""The operator's calls over HTTP, with the operator's token."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tenantry.cli.operator import TOKEN, OperatorError, UsageQuestion, items_of
from tenantry.domain.api_keys import ApiKey, ApiKeyWithSecret, KeyTerms
from tenantry.domain.billing.customer_links import CustomerMove
from tenantry.domain.billing.explanation import BillingExplanation
from tenantry.domain.billing.unplaced_events import UnplacedEvent
from tenantry.domain.grants import Grant, GrantInput
from tenantry.domain.imported_keys import read_key_pattern
from tenantry.domain.key_import import (
    ApiKeyToImport,
    ImportedKey,
    ImportedKeyCounts,
    ImportStatus,
)
from tenantry.domain.outbound_events import FeedPage
from tenantry.domain.tenant_search import TenantFilter, TenantMatch
from tenantry.domain.tenants import ManagedTenant, TenantInput
from tenantry.domain.usage import UsageReport
from tenantry.domain.webhook_endpoints import ListedEndpoint, QueuedEvents, WebhookTest
from tenantry_cli.api_command import exit_code_of
from tenantry_cli.client_configuration import wait_times
from tenantry_cli.output import (
    NOT_FOUND,
    OUT_OF_REACH,
    USAGE,
    CommandError,
)
from tenantry_sdk import Secret, Tenantry
from tenantry_sdk.errors import (
    APIError,
    AuthenticationError,
    ConfigurationError,
    ConnectionFailedError,
    TenantryError,
)

T = TypeVar("T")

_API: Final = "/api/v1"
_OPERATOR: Final = f"{_API}/operator"
_LONGEST_ANSWER: Final = 60.0
"""Seconds for an answer with its body. The service begins each within its own, shorter limit."""
_WAIT: Final = 20
"""Seconds that it waits for changes."""
_KEY_ID: Final = re.compile("key_[0-9a-f]{32}")
_ABSENT: Final = frozenset({"..", ".", ""})

Values = Mapping[str, str | int | bool | datetime | None]


class _Page(msgspec.Struct, Generic[T], rename="camel"):
    data: list[T]
    next_cursor: str | None = None


class _VerifiedAddress(msgspec.Struct):
    email: str


class RemoteOperator:
    """An `Operator` that asks a service. ``stack`` closes its connections."""

    def __init__(self, token: str, stack: ExitStack) -> None:
        try:
            self._client = stack.enter_context(
                Tenantry(
                    operator_token=Secret(token),
                    base_url=os.environ.get("TENANTRY_BASE_URL", "").strip() or None,
                    timeout=2 * _LONGEST_ANSWER,
                    attempt_timeout=_LONGEST_ANSWER,
                    backoff=wait_times().backoff,
                )
            )
        except ConfigurationError as error:
            raise CommandError(str(error), USAGE) from None

    @property
    def where(self) -> str:
        return f"at {self._client.base_url}"

    @property
    def imported_key_pattern(self) -> re.Pattern[bytes] | None:
        text = os.environ.get("IMPORTED_KEY_PATTERN", "").strip()
        try:
            return read_key_pattern(text) if text else None
        except ValueError as error:
            raise CommandError(f"IMPORTED_KEY_PATTERN: {error}", USAGE) from None

    @property
    def is_remote(self) -> bool:
        return True

    def _send(
        self,
        method: str,
        path: str,
        query: Values | None = None,
        body: object = None,
        *,
        org_id: str | None = None,
    ) -> bytes:
        """Send a request, and return the body of the answer; with ``org_id`` as the owner of this
        tenant. A POST is sent again if its answer is lost. Raises `CommandError`.
        """
        client = self._client if org_id is None else self._client.tenant(org_id)
        with self._command_errors():
            response = client.request(
                method,
                path,
                query=_texts(query or {}),
                body=None if body is None else msgspec.json.encode(body),
                idempotency_key=uuid4().hex if org_id is not None else None,
            )
        return response.content

    def _get(self, kind: type[T], path: str, query: Values | None = None) -> T:
        return _decoded(self._send("GET", path, query), kind)

    def _list(self, kind: type[T], path: str, query: Values, limit: int | None) -> Iterator[T]:
        return items_of(
            lambda most, cursor: self._get(
                _Page[kind],  # type: ignore[valid-type]  # msgspec reads it when it runs
                path,
                {**query, "limit": most, "cursor": cursor},
            ),
            limit,
        )

    @contextmanager
    def _command_errors(self) -> Iterator[None]:
        """Raise the client's errors as `CommandError`, in the words of the service."""
        try:
            yield
        except UnicodeEncodeError:
            raise CommandError("An argument is not UTF-8.", USAGE) from None
        except APIError as error:
            detail = error.detail
            if isinstance(error, AuthenticationError):
                detail = f"{self._client.base_url} rejects {TOKEN}: {detail}"
            faults = [(fault.location, fault.message) for fault in error.errors]
            raise OperatorError(detail, exit_code_of(error), error.code, faults) from None
        except ConnectionFailedError as error:
            message = f"There was no answer from {self._client.base_url}. {error}"
            raise CommandError(message, OUT_OF_REACH) from None
        except TenantryError as error:
            raise CommandError(str(error)) from None

    def find(self, text: str) -> list[TenantMatch]:
        return self._get(_Page[TenantMatch], f"{_OPERATOR}/find", {"text": text}).data

    def list_tenants(self, wanted: TenantFilter, limit: int | None) -> Iterator[ManagedTenant]:
        query = msgspec.structs.asdict(wanted)
        return self._list(ManagedTenant, f"{_OPERATOR}/tenants", query, limit)

    def show_tenant(self, org_id: str) -> ManagedTenant:
        return self._get(ManagedTenant, f"{_OPERATOR}/tenants/{_segment(org_id)}")

    def create_tenant(self, org_id: str, wanted: TenantInput) -> ManagedTenant:
        body = {
            "name": wanted.name,
            "ownerEmail": wanted.owner_email,
            "ownerId": wanted.owner_id,
            "stripeCustomerId": wanted.stripe_customer_id,
        }
        given = {name: value for name, value in body.items() if value is not msgspec.UNSET}
        query: Values = {"onlyNew": True, "plan": wanted.plan}
        path = f"{_API}/tenants/{_segment(org_id)}"
        return _decoded(self._send("PUT", path, query, given), ManagedTenant)

    def suspend(self, org_id: str, reason: str | None) -> ManagedTenant:
        path = f"{_OPERATOR}/tenants/{_segment(org_id)}/suspend"
        return _decoded(self._send("POST", path, body={"reason": reason}), ManagedTenant)

    def resume(self, org_id: str, reason: str | None) -> ManagedTenant:
        path = f"{_OPERATOR}/tenants/{_segment(org_id)}/resume"
        return _decoded(self._send("POST", path, body={"reason": reason}), ManagedTenant)

    def end_tenant(self, org_id: str, reason: str | None) -> None:
        self._send("DELETE", f"{_API}/tenants/{_segment(org_id)}", {"reason": reason})

    def export_tenant(self, org_id: str) -> object:
        return msgspec.Raw(self._send("GET", f"{_API}/tenants/{_segment(org_id)}/export"))

    def explain_tenant(self, org_id: str, limit: int) -> BillingExplanation:
        path = f"{_OPERATOR}/tenants/{_segment(org_id)}/explanation"
        return self._get(BillingExplanation, path, {"limit": limit})

    def verify_owner_address(self, org_id: str) -> str:
        path = f"{_API}/tenants/{_segment(org_id)}/verify-owner-address"
        return _decoded(self._send("POST", path), _VerifiedAddress).email

    def create_key(self, org_id: str, terms: KeyTerms) -> ApiKeyWithSecret:
        body = {**msgspec.to_builtins(terms), "orgId": org_id}
        answer = self._send("POST", f"{_API}/api-keys", body=body, org_id=org_id)
        return _decoded(answer, ApiKeyWithSecret)

    def get_key(self, key_id: str) -> ApiKey:
        if not _KEY_ID.fullmatch(key_id):
            raise CommandError("There is no such API key.", NOT_FOUND)
        found = self._list(ApiKey, f"{_OPERATOR}/api-keys", {"search": key_id}, None)
        for key in found:
            if key.id == key_id:
                return key
        raise CommandError("There is no such API key.", NOT_FOUND)

    def revoke_key(self, key_id: str, reason: str | None, *, force: bool) -> ApiKey:
        path = f"{_OPERATOR}/api-keys/{_segment(key_id)}"
        self._send("DELETE", path, {"force": force, "reason": reason})
        return self.get_key(key_id)

    def import_keys(
        self, org_id: str, algorithm: str, keys: Sequence[ApiKeyToImport], *, dry_run: bool
    ) -> list[ImportStatus]:
        path = f"{_API}/tenants/{_segment(org_id)}/api-keys"
        body = {"algorithm": algorithm, "keys": keys}
        if dry_run:
            return _decoded(
                self._send("POST", f"{path}/preview-import", body=body), _Page[ImportStatus]
            ).data
        imported = _decoded(self._send("POST", f"{path}/import", body=body), _Page[ImportedKey])
        return [result.status for result in imported.data]

    def count_imported_keys(self) -> list[ImportedKeyCounts]:
        return self._get(_Page[ImportedKeyCounts], f"{_OPERATOR}/imported-keys").data

    def list_imported_keys(
        self, org_id: str, limit: int | None, *, unused: bool
    ) -> Iterator[ApiKey]:
        path = f"{_OPERATOR}/imported-keys/{_segment(org_id)}"
        return self._list(ApiKey, path, {"unused": unused}, limit)

    def link_customer(self, customer: str, org_id: str) -> CustomerMove:
        return self._put_customer(customer, {"orgId": org_id})

    def move_customer(self, customer: str, org_id: str, reason: str | None) -> CustomerMove:
        return self._put_customer(customer, {"orgId": org_id, "move": True, "reason": reason})

    def _put_customer(self, customer: str, body: object) -> CustomerMove:
        path = f"{_OPERATOR}/customers/{_segment(customer)}"
        return _decoded(self._send("PUT", path, body=body), CustomerMove)

    def unlink_customer(self, customer: str, reason: str | None) -> CustomerMove:
        path = f"{_OPERATOR}/customers/{_segment(customer)}"
        return _decoded(self._send("DELETE", path, {"reason": reason}), CustomerMove)

    def list_parked_events(self, limit: int | None) -> Iterator[UnplacedEvent]:
        return self._list(UnplacedEvent, f"{_OPERATOR}/parked-events", {}, limit)

    def event_body(self, event_id: str) -> bytes:
        return self._send("GET", f"{_OPERATOR}/billing-events/{_segment(event_id)}/body")

    def list_grants(self, org_id: str) -> list[Grant]:
        return self._get(_Page[Grant], f"{_API}/tenants/{_segment(org_id)}/grants").data

    def set_grant(self, org_id: str, name: str, wanted: GrantInput) -> Grant:
        path = f"{_API}/tenants/{_segment(org_id)}/grants/{_segment(name)}"
        return _decoded(self._send("PUT", path, body=wanted), Grant)

    def end_grant(self, org_id: str, name: str) -> Grant:
        path = f"{_API}/tenants/{_segment(org_id)}/grants/{_segment(name)}"
        return _decoded(self._send("DELETE", path), Grant)

    def usage(self, question: UsageQuestion) -> UsageReport:
        query: Values = {
            "since": question.since,
            "until": question.until,
            "interval": question.interval,
            "groupBy": question.group,
            "orgId": question.org_id,
        }
        return self._get(UsageReport, f"{_OPERATOR}/usage", query)

    def audit_trail(self, since: datetime | None) -> Iterator[bytes]:
        yield self._send("GET", f"{_OPERATOR}/audit-events", {"since": since})

    def changes(
        self, after: str | None, types: str | None, org_id: str | None, *, waits: bool
    ) -> FeedPage:
        query: Values = {
            "after": after,
            "types": types,
            "orgId": org_id,
            "wait": _WAIT if waits else 0,
        }
        return self._get(FeedPage, f"{_OPERATOR}/events", query)

    def list_webhooks(self) -> list[ListedEndpoint]:
        return self._get(_Page[ListedEndpoint], f"{_OPERATOR}/webhook-endpoints").data

    def test_webhook(self, name: str) -> WebhookTest:
        return _decoded(self._send("POST", _endpoint(name, "test")), WebhookTest)

    def enable_webhook(self, name: str) -> QueuedEvents:
        return _decoded(self._send("POST", _endpoint(name, "enable")), QueuedEvents)

    def resend_webhook(
        self, name: str, *, event: str | None, since: datetime | None
    ) -> QueuedEvents:
        body = {"event": event, "since": since}
        return _decoded(self._send("POST", _endpoint(name, "resend"), body=body), QueuedEvents)


def _endpoint(name: str, action: str) -> str:
    return f"{_OPERATOR}/webhook-endpoints/{_segment(name)}/{action}"


def _segment(text: str) -> str:
    """Quote an id as a part of a path. Raises `CommandError` for one that would name the folder
    above.
    """
    if text in _ABSENT:
        raise CommandError(f"{text!r} is not an id.", USAGE)
    return quote(text, safe="", errors="surrogateescape")


def _texts(query: Values) -> dict[str, str]:
    """Format the values of a query; those that are None are left out."""
    encoded = msgspec.to_builtins(
        {name: value for name, value in query.items() if value is not None}
    )
    return {name: _text(value) for name, value in encoded.items()}


def _text(value: Any) -> str:  # noqa: ANN401  # of JSON
    return str(value).lower() if isinstance(value, bool) else str(value)


def _decoded(content: bytes, kind: type[T]) -> T:
    """Decode an answer of the service. Raises `CommandError` for that of something else."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise CommandError(f"The answer is not one of this version of tenantry: {error}") from None
