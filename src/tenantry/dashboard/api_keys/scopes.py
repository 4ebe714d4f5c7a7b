"""The scopes that the API's own routes need, and what they allow in words."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from tenantry.domain.access import ANYTHING


class Known(NamedTuple):
    """A scope that a route of the API needs."""

    scope: str
    allows: str


class Subject(NamedTuple):
    """What some of the known scopes are about."""

    name: str
    scopes: tuple[Known, ...]


# A test holds this against what the routes say that they need.
SUBJECTS: Final = (
    Subject(
        "Projects",
        (Known("projects:read", "See projects"), Known("projects:write", "Create, change and delete projects")),
    ),
    Subject(
        "API keys",
        (
            Known("api-keys:read", "See API keys, never their secrets"),
            Known("api-keys:write", "Create, change, rotate and revoke API keys that may do no more than this one"),
        ),
    ),
    Subject(
        "Organization",
        (
            Known("tenants:read", "See the organization's name, plan and subscription"),
            Known("tenants:write", "Change the organization's name and the address for billing mail"),
        ),
    ),
    Subject(
        "Members",
        (
            Known("members:read", "See members and their roles"),
            Known("members:write", "Add and remove members, and change their roles"),
        ),
    ),
    Subject(
        "Billing",
        (
            Known("billing:read", "See what the payment provider reported"),
            Known("billing:write", "Begin a checkout, and open the customer portal"),
        ),
    ),
    Subject("Audit trail", (Known("audit:read", "See and export who changed what"),)),
)
KNOWN: Final = {known.scope: known.allows for subject in SUBJECTS for known in subject.scopes}
_ACTIONS: Final = {"read": "See", "write": "Change"}


def in_words(scope: str) -> str:
    """What a scope allows; empty for one that is not of this API."""
    if scope in KNOWN:
        return KNOWN[scope]
    if scope == ANYTHING:
        return "Everything but what takes an OWNER key"
    resource, _, action = scope.partition(":")
    if resource == "*":
        return f"{_ACTIONS[action]} everything" if action in _ACTIONS else f"{action} on everything"
    if action == "*" and any(known.startswith(f"{resource}:") for known in KNOWN):
        return f"Everything with {resource}"
    return ""


def split(scopes: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The scopes that the picker offers, and the others."""
    scopes = tuple(scopes)
    return tuple(one for one in scopes if one in KNOWN), tuple(one for one in scopes if one not in KNOWN)
