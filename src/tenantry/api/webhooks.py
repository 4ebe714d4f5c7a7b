"""The payment provider's endpoint (SPEC 4.1, CONTRACT 6)."""

import logging
from collections.abc import Callable
from enum import StrEnum
from itertools import product
from typing import Final
from uuid import uuid4

from tenantry.billing.ingest import HandlingFailedError, WebhookService
from tenantry.common.clock import Clock
from tenantry.domain.billing.events import HANDLED_TYPES, Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.ledger import LedgerEntry, ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import (
    CompressedBodyError,
    DatabaseUnavailableError,
    PayloadTooLargeError,
)
from tenantry.integrations.stripe.decode import NotAnEventError, decode_event
from tenantry.integrations.stripe.signature import SignatureFault, SignatureVerifier
from tenantry.server.asgi_types import (
    EVENT,
    OUTCOME,
    TENANT,
    Header,
    HotRequest,
    HotResponse,
)
from tenantry.server.metrics import Metrics
from tenantry.server.problems import UNCOMPRESSED

PATH: Final = "/api/v1/webhooks/payment-provider"
MISSING_SIGNATURE: Final = "Missing Provider-Signature header"
INVALID_SIGNATURE: Final = "Invalid signature"
INVALID_PAYLOAD: Final = "Invalid payload"
_OTHER_TYPE: Final = "other"
_MODES: Final = {True: "live", False: "test", None: "unknown"}

logger = logging.getLogger(__name__)


class _NotEntered(StrEnum):
    """Outcomes of an event that the ledger does not record."""

    DUPLICATE = "duplicate"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


class _NoEvent(StrEnum):
    """Reasons to reject a request that is not an event."""

    COMPRESSED = "compressed"
    TOO_LARGE = "too_large"
    MISSING_SIGNATURE = "missing_signature"
    INVALID_PAYLOAD = "invalid_payload"


class WebhookReceiver:
    """Receives signed events."""

    def __init__(
        self,
        service: WebhookService,
        verifier: SignatureVerifier,
        metrics: Metrics,
        clock: Clock,
        policy: BillingPolicy,
        traceparent: Callable[[], str | None] | None = None,
    ) -> None:
        """``traceparent`` returns the current trace, if there is one."""
        self._traceparent = traceparent
        self._service = service
        self._verifier = verifier
        self._clock = clock
        self._policy = policy
        # counters start at 0: Prometheus does not see an increase from a missing series to 1
        kinds = product((*HANDLED_TYPES, _OTHER_TYPE), (*Outcome, *_NotEntered), _MODES)
        self._events = {
            (known, outcome, livemode): metrics.events.labels(known, outcome, _MODES[livemode])
            for known, outcome, livemode in kinds
        }
        self._refusals = {
            reason: metrics.refusals.labels(reason) for reason in (*SignatureFault, *_NoEvent)
        }
        self._anomalies = {anomaly: metrics.anomalies.labels(anomaly) for anomaly in Anomaly}

    async def handle(self, request: HotRequest) -> HotResponse:
        """Answer one delivery; a 200 means that the event is committed, or was before."""
        if request.scope["method"] != "POST":
            return HotResponse.text(405, "Method not allowed", (b"allow", b"POST"))
        arrival = await self._arrival(request)
        if isinstance(arrival, HotResponse):
            return arrival
        event = arrival.event
        try:
            entry = await self._service.receive(arrival)
        except HandlingFailedError:
            self._count(request, event, _NotEntered.FAILED)
            return HotResponse.text(500, "Handling failed")
        except DatabaseUnavailableError:
            self._count(request, event, _NotEntered.UNAVAILABLE)
            return HotResponse.text(503, "Service unavailable", (b"retry-after", b"1"))
        self._count(request, event, entry.outcome if entry else _NotEntered.DUPLICATE)
        if entry is not None:
            self._note(request, event, entry)
        return HotResponse.text(200, "OK")

    def _note(self, request: HotRequest, event: BillingEvent, entry: LedgerEntry) -> None:
        if entry.tenant_id is not None:
            request.scope[TENANT] = entry.tenant_id
        for anomaly in entry.anomalies:
            self._anomalies[anomaly].inc()
        if entry.outcome is Outcome.INVALID:
            logger.warning("event %s is malformed: %s", event.id, event.problem)

    async def _arrival(self, request: HotRequest) -> ReceivedEvent | HotResponse:
        """Read the body; return the verified event, or the error answer."""
        try:
            body = await request.body()
        except PayloadTooLargeError:
            return self._refuse(
                request,
                _NoEvent.TOO_LARGE,
                413,
                "Payload too large",
            )
        except CompressedBodyError as error:
            return self._refuse(
                request,
                _NoEvent.COMPRESSED,
                415,
                error.detail,
                UNCOMPRESSED,
            )
        return self._verified(request, body)

    def _verified(self, request: HotRequest, body: bytes) -> ReceivedEvent | HotResponse:
        """Return the verified event, or the error answer."""
        signature = request.header(b"provider-signature")
        if signature is None:
            signature = request.header(b"stripe-signature")
        if not signature or signature.isspace():
            return self._refuse(
                request,
                _NoEvent.MISSING_SIGNATURE,
                400,
                MISSING_SIGNATURE,
            )
        now = self._clock()
        if refusal := self._verifier.check(signature, body, now.timestamp()):
            return self._refuse(request, refusal, 400, INVALID_SIGNATURE)
        try:
            event = decode_event(
                body,
                arrived=int(now.timestamp()),
                make_up_id=lambda: f"evt_unnamed_{uuid4().hex}",
                reference_links=self._policy.checkout_reference_links,
            )
        except NotAnEventError:
            return self._refuse(
                request,
                _NoEvent.INVALID_PAYLOAD,
                400,
                INVALID_PAYLOAD,
            )
        request.scope[EVENT] = event.id, event.type
        return ReceivedEvent(
            event,
            now,
            body,
            trace=self._traceparent() if self._traceparent else None,
        )

    def _count(
        self, request: HotRequest, event: BillingEvent, outcome: Outcome | _NotEntered
    ) -> None:
        request.scope[OUTCOME] = outcome.value
        known = event.type if event.type in HANDLED_TYPES else _OTHER_TYPE
        self._events[known, outcome, event.livemode].inc()

    def _refuse(
        self,
        request: HotRequest,
        reason: SignatureFault | _NoEvent,
        status: int,
        text: str,
        *headers: Header,
    ) -> HotResponse:
        request.scope[OUTCOME] = reason.value
        self._refusals[reason].inc()
        logger.warning(
            "webhook refused: reason=%s request=%s", reason.value, request.request_id.decode()
        )
        return HotResponse.text(status, text, *headers)
