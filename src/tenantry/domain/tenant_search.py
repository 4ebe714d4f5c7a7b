"""How the operator finds tenants: filters of lists, and what a search finds."""

from typing import Annotated

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.plans import AccessState
from tenantry.domain.tenants import ManagedTenant


class TenantFilter(msgspec.Struct, frozen=True):
    """Conditions on tenants; None means any.

    ``search`` is a part of the id, the name, the owner's address or the id of a customer,
    case-insensitive.
    """

    search: str | None = None
    plan: str | None = None
    status: str | None = None
    access: AccessState | None = None
    suspended: bool | None = None


class TenantMatch(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant, and what it was found by."""

    found_by: Annotated[
        str,
        doc(
            "What the text is: `id`, `customer`, `email` (the owner's address) or `key`; or of a member `member` (its "
            "id), `user` (the user's id), `member_email` or `member_name`.",
            "customer",
        ),
    ]
    given: Annotated[str, doc("What matched: the id, the address, the name, or the key's id.")]
    tenant: Annotated[ManagedTenant, doc("The tenant.")]
    key: Annotated[ApiKey | None, doc("The key that it was found by.")] = None
