"""Billing: what the tenant pays for and uses, and the ways to the payment provider."""

from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.domain.billing.state import ENDED, NO_SUBSCRIPTION
from tenantry.domain.errors import (
    DomainError,
    IdempotencyMismatchError,
    NoCustomerError,
    ProviderNotConfiguredError,
    ProviderRefusedError,
    ProviderUnavailableError,
    ValidationError,
)
from tenantry.domain.plans import FREE, Catalog
from tenantry.gateways.mail import format_amount
from tenantry.http.access import AnyRequest
from tenantry.http.dashboard.billing_words import plan_name
from tenantry.http.dashboard.inputs import form_claim, once_token
from tenantry.http.dashboard.look import Look
from tenantry.http.dashboard.visitor import ORG, Door, Sent, SignedIn, Visitor
from tenantry.http.dashboard.words import status_in_words
from tenantry.http.problems import STATUSES
from tenantry.services.checkout import CheckoutService
from tenantry.services.overview import OverviewService

PATH: Final = f"{ORG}/billing"
SECTION: Final = "/billing"
CHECKOUT: Final = "/billing/checkout"
PORTAL: Final = "/billing/portal"
_WITHOUT_SUBSCRIPTION: Final = ENDED | {NO_SUBSCRIPTION}
_IN_WORDS: Final = (
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
        self, overview: OverviewService, checkout: CheckoutService, catalog: Catalog, look: Look, base_url: str
    ) -> None:
        self._overview = overview
        self._checkout = checkout
        self._catalog = catalog
        self._look = look
        self._base_url = base_url

    def routes(self, door: Door) -> Sequence[HTTPRouteHandler]:
        """The routes."""

        @get(PATH, guards=[door.needs("billing:read")])
        async def show_billing(
            visitor: SignedIn,
            back_from: Annotated[str, QueryParameter(name="from", max_length=20)] = "",
            plan: Annotated[str, QueryParameter(name="plan", max_length=64)] = "",
        ) -> Response[str]:
            return await self._page(visitor, back_from=back_from, wanted=plan)

        @post(f"{ORG}{CHECKOUT}", guards=[door.needs("billing:write")])
        async def begin_checkout(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
            plan, back = form.text("plan"), self._base_url + visitor.base + SECTION
            url = self._checkout.create_checkout(
                visitor.principal,
                plan=plan,
                success_url=f"{back}?from=checkout&plan={quote(plan, safe='')}",
                cancel_url=f"{back}?from=cancelled",
                claim=await form_claim(request, visitor.principal, form),
            )
            return await self._lead(visitor, url)

        @post(f"{ORG}{PORTAL}", guards=[door.needs("billing:write")])
        async def open_portal(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
            url = self._checkout.create_portal(
                visitor.principal,
                return_url=f"{self._base_url}{visitor.base}{SECTION}?from=portal",
                claim=await form_claim(request, visitor.principal, form),
            )
            return await self._lead(visitor, url)

        return [show_billing, begin_checkout, open_portal]

    async def _lead(self, visitor: Visitor, asked: Awaitable[str]) -> Response[str]:
        """To the provider: by a page, for a form's answer may redirect to no other origin (CSP, form-action)."""
        try:
            url = await asked
            if not url.startswith(("https://", "http://")) or not url.isascii() or not url.isprintable():
                raise ProviderRefusedError("The payment provider gave an address that leads nowhere.")
        except _IN_WORDS as error:
            return await self._page(visitor, problem=error)
        return self._look.page(
            "leaving.html", url=url, back=visitor.base + SECTION, headers={"Refresh": f"0; url={url}"}
        )

    async def _page(
        self, visitor: Visitor, *, back_from: str = "", wanted: str = "", problem: DomainError | None = None
    ) -> Response[str]:
        found = await self._overview.of_billing(visitor.principal)
        tenant = found.tenant
        is_subscribed = tenant.subscription_status not in _WITHOUT_SUBSCRIPTION
        is_buyable = self._checkout.is_configured and not is_subscribed
        return self._look.page(
            "billing.html",
            status_code=STATUSES[type(problem)] if problem else HTTPStatus.OK,
            visitor=visitor,
            section=SECTION,
            tenant=tenant,
            use=found.use,
            failed=found.failed,
            owed=format_amount(found.failed.amount_due, found.failed.currency) if found.failed else None,
            plan=plan_name(self._catalog, tenant.plan),
            plans=self._catalog.plans,
            limits=self._catalog.limits(tenant.plan),
            status=status_in_words(tenant),
            is_subscribed=is_subscribed,
            is_configured=self._checkout.is_configured,
            buyable={
                plan.id for plan in self._catalog.plans if is_buyable and plan.id != FREE and plan.stripe_price_ids
            },
            once=once_token(),
            problem=_words_of(problem) if problem else None,
            back_from=back_from,
            # the plan is another as soon as the provider's event is in
            awaited=wanted if back_from == "checkout" and wanted in self._catalog else None,
        )


def _words_of(problem: DomainError) -> str:
    if isinstance(problem, ValidationError):
        return "This plan cannot be subscribed to: " + "; ".join(message for _, message in problem.faults) + "."
    if isinstance(problem, IdempotencyMismatchError):
        return "This form was sent before, for another plan. Choose again."
    return problem.detail
