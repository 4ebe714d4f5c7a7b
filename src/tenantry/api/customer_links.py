"""Routes of the payment provider's customers, for the operator: which tenant each belongs to."""

from typing import Annotated, Final

import msgspec
from litestar import delete, put
from litestar.params import JSONBody, PathParameter

from tenantry.api.guards import ChangeAuthor, needs_operator, raises
from tenantry.api.parameters import IDENTIFIER, OrgId, Reason, ReasonText, path_parameter
from tenantry.api.services import Services
from tenantry.common.encoding import doc
from tenantry.domain.billing.customer_links import CustomerMove

PATH: Final = "/api/v1/operator/customers/{customer_id:str}"

CustomerId = Annotated[
    str, path_parameter("The payment provider's id of the customer.", "cus_Rk2pXw7Lm3")
]
NewCustomerId = Annotated[
    str,
    PathParameter(
        description="The payment provider's id of the customer.",
        max_length=255,
        pattern=IDENTIFIER,
        schema_extra={"example": "cus_Rk2pXw7Lm3"},
    ),
]
_operator = needs_operator()


class WantedLink(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The tenant that a customer belongs to from now on."""

    org_id: Annotated[OrgId, doc(example="acme")]
    move: Annotated[bool, doc("Also if another tenant has the customer.", example=True)] = False
    reason: Annotated[
        ReasonText | None,
        doc("Why: the audit trail shows it, also to the tenants.", "They merged"),
    ] = None


@put(
    PATH,
    guards=[_operator],
    summary="Link or move a customer (operator)",
    opt=raises("not_found", "customer_taken", "tenant_deleted"),
)
async def put_customer(
    services: Services, author: ChangeAuthor, customer_id: NewCustomerId, data: JSONBody[WantedLink]
) -> CustomerMove:
    """Link a customer of the payment provider to a tenant, with the customer's events.

    The customer of another tenant that has not ended needs `move: true`. Then both tenants are
    folded again; subscriptions whose metadata names a tenant stay with it.
    """
    change = services.links.move if data.move else services.links.link
    return await change(author.because(data.reason), customer_id, data.org_id)


@delete(PATH, guards=[_operator], status_code=200, summary="Unlink a customer (operator)")
async def delete_customer(
    services: Services, author: ChangeAuthor, customer_id: CustomerId, reason: Reason = None
) -> CustomerMove:
    """Remove the link of a customer.

    The customer's events no longer count for the tenant, except those of subscriptions whose
    metadata names it. They wait for another link for 30 days.
    """
    return await services.links.unlink(author.because(reason), customer_id)
