"""The pages that the provider hosts for customers: checkout, the portal, an invoice."""

from collections.abc import Callable
from typing import Final

from tenantry_devkit.simulator.api.parameters import Parameters
from tenantry_devkit.simulator.asgi import Answer, Request
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.errors import ApiError, found
from tenantry_devkit.simulator.html import Html, redirect
from tenantry_devkit.simulator.objects import Card, CheckoutSession, Invoice, PortalSession
from tenantry_devkit.simulator.subscriptions import ItemChange

CHECKOUT: Final = "/c/pay/"
PORTAL: Final = "/p/session/"
INVOICE: Final = "/i/"


class HostedPages:
    """Forms that work without script. Who knows the address of a page may use it."""

    def __init__(self, engine: Engine, html: Html) -> None:
        self._engine = engine
        self._account = engine.account
        self._html = html
        self._pages: dict[str, Callable[[str, Parameters | None], Answer]] = {
            CHECKOUT: self._checkout,
            PORTAL: self._portal,
            INVOICE: self._invoice,
        }

    def answer(self, request: Request) -> Answer | None:
        """The answer, if the address is that of a hosted page."""
        for prefix, page in self._pages.items():
            if request.path.startswith(prefix):
                form = Parameters.parse(request.body.decode("utf-8", "replace")) if request.method == "POST" else None
                try:
                    return page(request.path.removeprefix(prefix), form)
                except ApiError as error:
                    return self._html.message("This does not work", str(error), error.status)
        return None

    def _checkout(self, session_id: str, form: Parameters | None) -> Answer:
        session = found(self._account.checkout_sessions, "checkout.session", session_id)
        if form is None:
            return self._checkout_page(session)
        card = Card.DECLINES if form.text("card") == Card.DECLINES else Card.WORKS
        try:
            done = self._engine.checkouts.complete(session_id, card)
        except ApiError as error:
            if error.error.get("code") != "card_declined":
                raise
            return self._checkout_page(session, str(error))
        return redirect(done.success_url or session.url or "/")

    def _checkout_page(self, session: CheckoutSession, problem: str | None = None) -> Answer:
        if session.status != "open":
            return self._html.message("Checkout", f"This session is {session.status}.")
        return self._html.page("checkout.html", leads_to=session.success_url, session=session, problem=problem)

    def _portal(self, session_id: str, form: Parameters | None) -> Answer:
        session = found(self._account.portal_sessions, "portal session", session_id)
        if form is None:
            return self._portal_page(session)
        self._change(session, form)
        return redirect(f"{PORTAL}{session_id}")

    def _portal_page(self, session: PortalSession) -> Answer:
        account = self._account
        own = [each for each in account.subscriptions.values() if each.customer == session.customer]
        return self._html.page(
            "portal.html",
            session=session,
            customer=account.customers[session.customer],
            subscriptions=[each for each in own if not each.has_ended],
            ended=[each for each in own if each.has_ended],
            invoices=[each for each in account.invoices.values() if each.customer == session.customer][::-1],
            prices=list(account.prices.values()),
        )

    def _change(self, session: PortalSession, form: Parameters) -> None:
        """Do what a button of the portal says, to the customer's own things alone."""
        subscriptions, action = self._engine.subscriptions, form.required("action")
        if action == "card":
            card = form.choice("card", tuple(Card)) or Card.WORKS
            self._engine.customers.use_card(session.customer, Card(card))
            return
        subscription = subscriptions.living(form.required("subscription"))
        if subscription.customer != session.customer:
            raise ApiError(404, "There is no such subscription.")
        if action == "change":
            price = found(self._account.prices, "price", form.required("price"), param="price")
            subscriptions.update(subscription.id, items=[ItemChange(subscription.items[0].id, price)])
        elif action == "cancel_at_period_end":
            subscriptions.update(subscription.id, cancel_at_period_end=True)
        elif action == "resume":
            subscriptions.update(subscription.id, cancel_at_period_end=False)
        elif action == "cancel":
            subscriptions.cancel(subscription.id)
        else:
            raise ApiError(400, "There is no such action.")

    def _invoice(self, invoice_id: str, form: Parameters | None) -> Answer:
        invoice = found(self._account.invoices, "invoice", invoice_id)
        if form is None:
            return self._invoice_page(invoice)
        try:
            self._engine.subscriptions.pay(invoice_id)
        except ApiError as error:
            return self._invoice_page(self._account.invoices[invoice_id], str(error))
        return redirect(f"{INVOICE}{invoice_id}")

    def _invoice_page(self, invoice: Invoice, problem: str | None = None) -> Answer:
        return self._html.page("invoice.html", invoice=invoice, problem=problem)
