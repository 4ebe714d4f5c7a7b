"""Rejections: the requests of a tenant's keys and users that were refused (CONTRACT 11.3).

They answer "why did I get 403 at 14:03?", so they are for people: processes write them a few
seconds late, and equal ones of a minute are one.
"""

from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.common.encoding import doc
from tenantry.domain.errors import NoOrganizationError, OrgMismatchError
from tenantry.domain.permissions import Mode, PrincipalKind, RequestPrincipal
from tenantry.domain.usage import ALL_USERS, UsageSubject

KEPT: Final = timedelta(days=7)
MOST_OF_TENANT: Final = 1000
MOST_OF_SENDER: Final = 200
"""The newest that are kept of a tenant, and of one of its keys or users."""

_STATUSES: Final = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
)
_BY_ANYBODY: Final = frozenset({NoOrganizationError.code, OrgMismatchError.code})
"""Of requests that anybody could send in a tenant's name."""


class KnownSender(msgspec.Struct, frozen=True):
    """Whose credential a request has, be it a rejected one."""

    org_id: str
    kind: PrincipalKind
    id: str
    mode: Mode

    @property
    def usage_subject(self) -> UsageSubject:
        """In whose usage the request counts."""
        return self.org_id, self.id if self.kind is PrincipalKind.API_KEY else ALL_USERS


def sender_of(principal: RequestPrincipal) -> KnownSender:
    """Return the sender of an authenticated request."""
    return KnownSender(principal.org_id, principal.kind, principal.id, principal.mode)


class RefusedRequest(msgspec.Struct, frozen=True):
    """A refused request as its process sees it. ``route`` is a template, never a client's path."""

    status: int
    code: str
    needed: str | None
    route: str | None
    request_id: str
    address: str | None

    @property
    def is_recorded(self) -> bool:
        """Whether it is one of the rejections that a tenant sees."""
        return self.status in _STATUSES and self.code not in _BY_ANYBODY


class RejectionFilter(msgspec.Struct, frozen=True):
    """Which rejections a list shows: those of a key, with a code; None for all."""

    key_id: str | None = None
    code: str | None = None


class Rejection(msgspec.Struct, frozen=True, rename="camel"):
    """Refused requests of one key or user that are equal, of one minute."""

    at: Annotated[datetime, doc("When the last of them was refused.", "2026-11-27T14:03:11Z")]
    mode: Annotated[Mode, doc("The mode of the credential.", "live")]
    status: Annotated[int, doc("The HTTP status of the answer.", 403)]
    code: Annotated[str, doc("The error code of the answer.", "insufficient_scope")]
    request_id: Annotated[
        str,
        doc(
            "The id of the last request, as in `X-Request-Id`.", "5e0c4ad1c1f24b7f9a0b6f9f6d0c7a51"
        ),
    ]
    address: Annotated[
        str | None, doc("The address of the last request's client, if known.", "203.0.113.7")
    ]
    counted: Annotated[int, doc("The number of requests.", 12)]
    key_id: Annotated[
        str | UnsetType,
        doc("The API key; absent for a user.", "key_01975c3a51c2a1b3c5d7e9f10213a5b7"),
    ] = UNSET
    principal_id: Annotated[
        str | UnsetType, doc("The user, by the token's subject; absent for a key.", "user_olivia")
    ] = UNSET
    needed: Annotated[
        str | UnsetType,
        doc(
            "What was missing: a scope, a feature, a limit, or a proof of the address.",
            "projects:write",
        ),
    ] = UNSET
    route: Annotated[
        str | UnsetType,
        doc("The template of the route; absent in an application of your own.", "/api/v1/projects"),
    ] = UNSET
