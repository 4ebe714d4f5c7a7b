"""Both hot routes with the database calls replaced by constants: what HTTP, signature and JSON alone cost."""

import sys
from datetime import UTC, datetime

import uvicorn

from tenantry.domain.access import AccessLevel, Mode, Principal, PrincipalKind
from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.ledger import Arrival
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.pages import Page
from tenantry.domain.plans import parse_catalog
from tenantry.domain.projects import Project
from tenantry.gateways.provider.signature import SignatureVerifier
from tenantry.http import projects, webhooks
from tenantry.http.front import Front, HotRoutes
from tenantry.http.metrics import Metrics
from tenantry.http.projects import ProjectList
from tenantry.http.raw import Receive, Scope, Send
from tenantry.http.webhooks import WebhookEndpoint
from tenantry.kit.clock import system_clock
from tenantry.services.admission import Admitted
from tenantry.services.webhooks import Receipt

_PRINCIPAL = Principal(
    kind=PrincipalKind.API_KEY,
    id="key_1",
    org_id="t1",
    mode=Mode.LIVE,
    scopes=("projects:read",),
    access_level=AccessLevel.SCOPED,
    plan="free",
    subscription_status="none",
    expires_at=None,
)
_APPLIED = Receipt(Outcome.APPLIED)


class _Inbox:
    async def receive(self, _arrival: Arrival) -> Receipt:
        return _APPLIED


class _Admission:
    async def admit(self, _authorization: bytes | None, _organization: bytes | None, _address: str | None) -> Admitted:
        return Admitted(_PRINCIPAL, ())


class _Projects:
    def __init__(self) -> None:
        now = datetime.now(UTC)
        self._page = Page(
            [Project(f"proj_{n:032x}", "t1", f"Project {n}", None, Mode.LIVE, now, now) for n in range(20)], None
        )

    async def list_page(self, _principal: Principal, _limit: int, _cursor: str | None) -> Page[Project]:
        return self._page


async def _nothing_else(_scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    while message["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
        message = await receive()
    await send({"type": "lifespan.shutdown.complete"})


def main(port: int, secret: str) -> None:
    """Serve until a signal comes."""
    metrics = Metrics(several_processes=False)
    policy = BillingPolicy(
        parse_catalog('[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\nstripe_price_id = "price_pro"\n')
    )
    verifier = SignatureVerifier([secret], 300)
    hot = HotRoutes()
    hot.add_any_method(webhooks.PATH, WebhookEndpoint(_Inbox(), verifier, metrics, system_clock, policy).handle)  # type: ignore[arg-type]
    hot.add("GET", projects.PATH, ProjectList(_Admission(), _Projects()).handle)  # type: ignore[arg-type]
    front = Front(hot, _nothing_else, metrics)
    uvicorn.run(
        front,
        port=port, loop="uvloop", http="httptools", ws="none", log_config=None, access_log=False, server_header=False,
    )  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
