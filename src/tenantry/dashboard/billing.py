"""Billing: what the tenant pays for and uses, and the ways to the payment provider."""

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.accounts.overview import OverviewService
from tenantry.api.guards import AnyRequest, principal_author
from tenantry.billing.checkout import CheckoutService
from tenantry.billing.ledger_queries import LedgerQueries
from tenantry.dashboard.flash_messages import Notice, Notices
from tenantry.dashboard.forms import form_claim, once_token, retry_while_in_flight
from tenantry.dashboard.guards import ORG, Sent, SessionGuard, SignedIn, Visitor
from tenantry.dashboard.labels import has_subscription, status_in_words, will_end
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    NoCustomerError,
    ProviderNotConfiguredError,
    ProviderRefusedError,
    ProviderUnavailableError,
    ValidationError,
)
from tenantry.domain.plans import FREE, Catalog
from tenantry.integrations.smtp import format_amount
from tenantry.server.problems import STATUSES

PATH: Final = f"{ORG}/billing"
SECTION: Final = "/billing"
CHECKOUT: Final = "/billing/checkout"
PORTAL: Final = "/billing/portal"
BACK: Final = "/billing/back"
_IN_WORDS: Final = (
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    NoCustomerError,
    ProviderNotConfiguredError,
    ProviderRefusedError,
    ProviderUnavailableError,
    ValidationError,
)


def is_way_to_provider(path: str) -> bool:
    """Whether a path waits for the payment provider, which may take longer than our database."""
    return path.startswith("/orgs/") and path.endswith((CHECKOUT, PORTAL))


class BillingPages:
    """The pages of billing."""

    def __init__(
        self,
        overview: OverviewService,
        ledger: LedgerQueries,
        checkout: CheckoutService,
        catalog: Catalog,
        notices: Notices,
        look: Renderer,
        base_url: str,
    ) -> None:
        self._overview = overview
        self._ledger = ledger
        self._checkout = checkout
        self._catalog = catalog
        self._notices = notices
        self._look = look
        self._base_url = base_url

    def routes(self, door: SessionGuard) -> Sequence[HTTPRouteHandler]:
        """The routes."""

        @get(PATH, guards=[door.needs("billing:read")])
        async def show_billing(
            visitor: SignedIn, awaits: Annotated[str, QueryParameter(name="awaits", max_length=64)] = ""
        ) -> Response[str]:
            return await self._page(visitor, awaits=awaits)

        @get(f"{ORG}{BACK}", guards=[door.needs("billing:read")])
        async def come_back(
            visitor: SignedIn,
            proved: Annotated[str, QueryParameter(name="notice", max_length=200)] = "",
            plan: Annotated[str, QueryParameter(name="plan", max_length=64)] = "",
        ) -> Response[str]:
            path = visitor.base + SECTION
            notice = self._notices.read(visitor.session, visitor.base + BACK, proved)
            if notice is None:
                return self._look.redirect(path)
            return self._look.tell(visitor, notice, path, f"?awaits={quote(plan, safe='')}" if plan else "")

        @post(f"{ORG}{CHECKOUT}", guards=[door.needs("billing:write")])
        async def begin_checkout(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
            plan = form.text("plan")
            claim = await form_claim(request, visitor.principal, form)
            return await self._lead(
                visitor,
                lambda: self._checkout.create_checkout(
                    visitor.principal,
                    principal_author(request, visitor.principal),
                    plan=plan,
                    success_url=f"{self._way_back(visitor, Notice.CHECKED_OUT)}&plan={quote(plan, safe='')}",
                    cancel_url=self._way_back(visitor, Notice.CHECKOUT_LEFT),
                    claim=claim,
                ),
            )

        @post(f"{ORG}{PORTAL}", guards=[door.needs("billing:write")])
        async def open_portal(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
            claim = await form_claim(request, visitor.principal, form)
            return await self._lead(
                visitor,
                lambda: self._checkout.create_portal(
                    visitor.principal,
                    principal_author(request, visitor.principal),
                    return_url=self._way_back(visitor, Notice.PORTAL_LEFT),
                    claim=claim,
                ),
            )

        return [show_billing, come_back, begin_checkout, open_portal]

    def _way_back(self, visitor: Visitor, notice: Notice) -> str:
        """The address for the provider to lead this visitor back to, where they are told what became of it."""
        path = visitor.base + BACK
        return f"{self._base_url}{path}?notice={self._notices.prove(visitor.session, path, notice)}"

    async def _lead(self, visitor: Visitor, ask: Callable[[], Awaitable[str]]) -> Response[str]:
        """To the provider: by a page, for a form's answer may redirect to no other origin (CSP, form-action)."""
        try:
            url = await retry_while_in_flight(ask)
            if not url.startswith(("https://", "http://")) or not url.isascii() or not url.isprintable():
                raise ProviderRefusedError("The payment provider gave an address that leads nowhere.")
        except _IN_WORDS as error:
            return await self._page(visitor, problem=error)
        return self._look.page(
            "leaving.html", url=url, back=visitor.base + SECTION, headers={"Refresh": f"0; url={url}"}
        )

    async def _page(self, visitor: Visitor, *, awaits: str = "", problem: DomainError | None = None) -> Response[str]:
        # before the rest is read: what comes in between is shown, and told of once more. A refusal is to stay there.
        newest = None if problem else await self._ledger.newest_arrival(visitor.principal)
        found = await self._overview.of_billing(visitor.principal)
        tenant = found.tenant
        is_subscribed = has_subscription(tenant)
        is_buyable = self._checkout.is_configured and not is_subscribed
        return self._look.page(
            "billing.html",
            status_code=STATUSES[type(problem)] if problem else HTTPStatus.OK,
            visitor=visitor,
            section=SECTION,
            tenant=tenant,
            use=found.use,
            failed=found.failed,
            owed=format_amount(found.failed.amount, found.failed.currency) if found.failed else None,
            plan=self._catalog.name(tenant.plan),
            plans=self._catalog.plans,
            limits=self._catalog.limits(tenant.plan),
            status=status_in_words(tenant),
            ends=will_end(tenant),
            newest=newest,
            is_subscribed=is_subscribed,
            is_configured=self._checkout.is_configured,
            buyable={
                plan.id for plan in self._catalog.plans if is_buyable and plan.id != FREE and plan.stripe_price_ids
            },
            once=once_token(),
            problem=_words_of(problem) if problem else None,
            # the plan is another as soon as the provider's event is in
            awaited=awaits if awaits in self._catalog else None,
        )


def _words_of(problem: DomainError) -> str:
    if isinstance(problem, ValidationError):
        return "This plan cannot be subscribed to: " + "; ".join(message for _, message in problem.faults) + "."
    if isinstance(problem, IdempotencyMismatchError):  # of the provider's: a form's claim is of all that it holds
        return "This form was sent before, and something has changed since. Send it again from this page."
    if isinstance(problem, IdempotencyInFlightError):
        return "This form is still being carried out. Wait a moment, then send it again."
    return problem.detail
