"""The form that links a customer of the payment provider, on the page of one tenant, or with the
tenant's id on that of the installation.
"""

from typing import Annotated, Final

import msgspec
from litestar import Response

from tenantry.api.parameters import CustomerId, OrgId
from tenantry.dashboard import forms
from tenantry.dashboard.context import PageContext
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.operator_questions import Question, ask, author_with_reason
from tenantry.domain import errors

FAULTS: Final = (InvalidFormError, errors.ValidationError)
"""What `submit` raises for a form to correct."""
NO_TENANT: Final[forms.FieldErrors] = {
    errors.NotFoundError: ("orgId", "There is no organization with this id."),
    errors.TenantDeletedError: ("orgId", "This organization was deleted."),
}
_MESSAGES: Final = {
    "customer": "Use letters, digits, _ and -.",
    "orgId": "Use letters, digits, _ and -.",
}


class _Link(msgspec.Struct, rename="camel"):
    customer: CustomerId
    org_id: Annotated[OrgId, msgspec.Meta(min_length=1)]


class _TakenError(InvalidFormError):
    """The customer belongs to another tenant, its ``holder``."""

    def __init__(self, holder: str | None) -> None:
        super().__init__({"customer": f"It belongs to the organization {holder}."})
        self.holder = holder


def show(ctx: PageContext, page: tuple[str, str], error: Exception | None = None) -> Response[str]:
    """Render the form; ``page`` is that which leads here, as in `Question`. If another tenant has
    the customer, the form offers to move it.
    """
    values = ctx.submitted.over({"customer": ctx.query("customer"), "orgId": ""})
    holder = error.holder if isinstance(error, _TakenError) else None
    return ask(
        ctx, _question(page), error, "operator_link_customer.html", values=values, holder=holder
    )


async def submit(ctx: PageContext, org_id: str) -> None:
    """Link the customer of the form to this tenant. Raises `FAULTS`, `NotFoundError` and
    `TenantDeletedError`.
    """
    customer_id = ctx.form.text("customer")
    links = ctx.services.links
    forms.validate(_Link, {"customer": customer_id, "orgId": org_id}, _MESSAGES)
    try:
        await links.move(
            author_with_reason(ctx),
            customer_id,
            org_id,
            taken_from=ctx.form.text("takenFrom"),  # empty: from no other organization
        )
    except errors.CustomerTakenError as error:
        raise _TakenError(await links.holder_of(customer_id)) from error


def _question(page: tuple[str, str]) -> Question:
    return Question(
        title="Link a customer of the payment provider",
        effects=(
            "The customer's events count for the organization, those that wait for a link too.",
            "Subscriptions whose metadata names an organization stay with that one.",
            "From now on the organization sees this customer's invoices, payment method and portal.",
        ),
        button="Link customer",
        busy="Linking",
        page=page,
    )
