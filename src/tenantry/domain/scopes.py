"""Scopes: what a credential or a role grants, and what a request needs."""

import re
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from tenantry.domain.catalog_texts import check_text
from tenantry.domain.names import END

MAX_SCOPES: Final = 64
_NAME: Final = r"(?:[a-z][a-z0-9_-]{0,31}|\*)"
SCOPE_FORM: Final = f"{_NAME}:{_NAME}"
_scope: Final = re.compile(SCOPE_FORM, re.ASCII)
ANYTHING: Final = "*:*"
SCOPE_PATTERN: Final = f"^(?:{SCOPE_FORM}|OWNER){END}"
Scopes = Annotated[
    tuple[
        Annotated[
            str,
            msgspec.Meta(
                pattern=SCOPE_PATTERN,
                max_length=65,
                description="`<resource>:<action>`; either part may be `*`.",
            ),
        ],
        ...,
    ],
    msgspec.Meta(max_length=MAX_SCOPES),
]
"""The scopes of a request."""
OWN_SCOPES: Final = frozenset(
    {
        "api-keys:read",
        "api-keys:write",
        "audit:read",
        "billing:read",
        "billing:write",
        "members:read",
        "members:write",
        "projects:read",
        "projects:write",
        "tenants:read",
        "tenants:write",
        "usage:read",
    }
)
"""The scopes that tenantry's own routes need."""
_LONGEST_ABOUT: Final = 200


class CatalogScope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scope of the operator's API, as the forms for keys offer it: its name, a sentence about it,
    and the heading that it is under.
    """

    id: str
    name: str
    about: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if not is_scope(self.id) or "*" in self.id:
            raise ValueError("id must be resource:action, each of a-z, 0-9, '_' and '-'")
        if self.id in OWN_SCOPES:
            raise ValueError("is one of tenantry's own: choose another id")
        check_text("name", self.name)
        check_text("about", self.about, _LONGEST_ABOUT)
        check_text("group", self.group)


def is_scope(text: str) -> bool:
    """Whether ``text`` has the form ``(name|*):(name|*)``."""
    return _scope.fullmatch(text) is not None


def covers(grants: Iterable[str], need: str) -> bool:
    """Whether one of ``grants`` covers ``need``, part by part; write does not imply read."""
    if need in grants:
        return True
    resource, _, action = need.partition(":")
    for grant in grants:
        granted_resource, _, granted_action = grant.partition(":")
        if granted_resource in ("*", resource) and granted_action in ("*", action):
            return True
    return False


def covers_all(grants: Iterable[str], needs: Iterable[str]) -> bool:
    """Whether ``grants`` covers each of ``needs``, as `covers`."""
    return all(covers(grants, need) for need in needs)


def intersect(left: Iterable[str], right: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes that both sides grant, part by part, sorted."""
    right = tuple(right)
    common = [
        tuple(map(_meet, one.split(":"), other.split(":"))) for one in left for other in right
    ]
    return tuple(sorted({":".join(parts) for parts in common if all(parts)}))


def _meet(left: str, right: str) -> str:
    """Return what two parts of scopes have in common; empty for nothing."""
    if left in ("*", right):
        return right
    return left if right == "*" else ""
