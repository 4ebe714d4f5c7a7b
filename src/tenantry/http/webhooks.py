"""The payment provider's endpoint (SPEC 4.1, CONTRACT 6)."""

import logging
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from prometheus_client import Counter

from tenantry.domain.billing.events import HANDLED_TYPES, BillingEvent, Outcome
from tenantry.domain.billing.ledger import Arrival
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import DatabaseUnavailableError, PayloadTooLargeError
from tenantry.gateways.provider.decode import NotAnEventError, decode_event
from tenantry.gateways.provider.signature import SignatureVerifier
from tenantry.http.metrics import Metrics
from tenantry.http.raw import OUTCOME, TENANT, RawAnswer, RawRequest
from tenantry.kit.clock import Clock
from tenantry.services.webhooks import HandlingFailedError, WebhookService

PATH: Final = "/api/v1/webhooks/payment-provider"
MISSING_SIGNATURE: Final = "Missing Provider-Signature header"
INVALID_SIGNATURE: Final = "Invalid signature"
INVALID_PAYLOAD: Final = "Invalid payload"
_DUPLICATE: Final = "duplicate"
_OTHER_TYPE: Final = "other"
_MODES: Final = {True: "live", False: "test", None: "unknown"}

logger = logging.getLogger(__name__)


class WebhookEndpoint:
    """Takes in signed events."""

    def __init__(
        self,
        service: WebhookService,
        verifier: SignatureVerifier,
        metrics: Metrics,
        clock: Clock,
        policy: BillingPolicy,
        traceparent: Callable[[], str | None] | None = None,
    ) -> None:
        """``traceparent`` says which trace is under way, where there are any."""
        self._traceparent = traceparent
        self._service = service
        self._verifier = verifier
        self._metrics = metrics
        self._clock = clock
        self._policy = policy
        self._counters: dict[tuple[str, str, bool | None], Counter] = {}

    async def handle(self, request: RawRequest) -> RawAnswer:
        """Answer one delivery; a 200 means that the event is committed, or was before."""
        if request.scope["method"] != "POST":
            return RawAnswer.text(405, "Method not allowed", (b"allow", b"POST"))
        try:
            body = await request.body()
        except PayloadTooLargeError:
            return self._refuse(request, "too_large", 413, "Payload too large")
        arrival = self._verified(request, body)
        if isinstance(arrival, RawAnswer):
            return arrival
        event = arrival.event
        try:
            receipt = await self._service.receive(arrival)
        except HandlingFailedError:
            self._count(request, event, "failed")
            return RawAnswer.text(500, "Handling failed")
        except DatabaseUnavailableError:
            self._count(request, event, "unavailable")
            return RawAnswer.text(503, "Service unavailable", (b"retry-after", b"1"))
        self._count(request, event, receipt.outcome.value if receipt.outcome else _DUPLICATE)
        if receipt.tenant_id is not None:
            request.scope[TENANT] = receipt.tenant_id
        for anomaly in receipt.anomalies:
            self._metrics.anomalies.labels(anomaly.value).inc()
        if receipt.outcome is Outcome.INVALID:
            logger.warning("event %s is of no use: %s", event.id, event.problem)
        return RawAnswer.text(200, "OK")

    def _verified(self, request: RawRequest, body: bytes) -> Arrival | RawAnswer:
        """The event that was sent, or the refusal."""
        signature = request.header(b"provider-signature")
        if signature is None:
            signature = request.header(b"stripe-signature")
        if not signature or signature.isspace():
            return self._refuse(request, "missing_signature", 400, MISSING_SIGNATURE)
        now = self._clock()
        if refusal := self._verifier.check(signature, body, now.timestamp()):
            return self._refuse(request, refusal.value, 400, INVALID_SIGNATURE)
        try:
            event = decode_event(
                body,
                arrived=int(now.timestamp()),
                make_up_id=lambda: f"evt_unnamed_{uuid4().hex}",
                reference_links=self._policy.checkout_reference_links,
            )
        except NotAnEventError:
            return self._refuse(request, "invalid_payload", 400, INVALID_PAYLOAD)
        return Arrival(event, now, body, trace=self._traceparent() if self._traceparent else None)

    def _count(self, request: RawRequest, event: BillingEvent, outcome: str) -> None:
        request.scope[OUTCOME] = outcome
        known = event.type if event.type in HANDLED_TYPES else _OTHER_TYPE, outcome, event.livemode
        counter = self._counters.get(known)
        if counter is None:
            counter = self._counters[known] = self._metrics.events.labels(*known[:2], _MODES[event.livemode])
        counter.inc()

    def _refuse(self, request: RawRequest, reason: str, status: int, text: str) -> RawAnswer:
        request.scope[OUTCOME] = reason
        self._metrics.refusals.labels(reason).inc()
        logger.warning("webhook refused: reason=%s request=%s", reason, request.request_id.decode())
        return RawAnswer.text(status, text)
