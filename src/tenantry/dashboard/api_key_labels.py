"""Texts on the pages of API keys: scopes, expiry and overlap choices, errors, and sample requests."""

import json
import shlex
from typing import Final, NamedTuple

from tenantry.domain.access import ANYTHING
from tenantry.domain.api_keys import SOON, KeyState
from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    KeyLimitReachedError,
    KeyNotActiveError,
    LastOwnerError,
    ModeMismatchError,
    ScopeEscalationError,
)

SCOPE_GROUPS: Final = {
    "Projects": {"projects:read": "See projects", "projects:write": "Create, change and delete projects"},
    "API keys": {
        "api-keys:read": "See API keys, never their secrets",
        "api-keys:write": "Create, change, rotate and revoke API keys with no more scopes than this one",
    },
    "Organization": {
        "tenants:read": "See the organization's name, plan and subscription",
        "tenants:write": "Change the organization's name and billing address",
    },
    "Members": {
        "members:read": "See members and their roles",
        "members:write": "Add and remove members, and change their roles",
    },
    "Billing": {
        "billing:read": "See billing events",
        "billing:write": "Start a checkout, and open the customer portal",
    },
    "Audit trail": {"audit:read": "See and export the audit trail"},
}
"""The scopes that routes of the API need, with what each allows."""
KNOWN_SCOPES: Final = {scope: text for group in SCOPE_GROUPS.values() for scope, text in group.items()}
_ACTIONS: Final = {"read": "See", "write": "Change"}


def scope_label(scope: str) -> str:
    """Say what a scope allows; empty for a scope of the tenant's own services."""
    if scope in KNOWN_SCOPES:
        return KNOWN_SCOPES[scope]
    if scope == ANYTHING:
        return "Everything that does not require an OWNER key"
    resource, _, action = scope.partition(":")
    if resource == "*":
        return f"{_ACTIONS[action]} everything" if action in _ACTIONS else f"{action} on everything"
    if action == "*" and any(known.startswith(f"{resource}:") for known in KNOWN_SCOPES):
        return f"Everything with {resource}"
    return ""


MODES: Final = (("", "Both"), ("live", "Live"), ("test", "Test"))
STATES: Final = (
    ("", "All"),
    (KeyState.ACTIVE, "Active"),
    (KeyState.EXPIRING, f"Expiring within {SOON.days} days"),
    (KeyState.REPLACED, "Replaced, still working"),
    (KeyState.EXPIRED, "Expired"),
    (KeyState.REVOKED, "Revoked"),
    (KeyState.LEAKED, "Leaked"),
)
OVERLAPS: Final = (("0", "Revoke it now"), ("3600", "1 hour"), ("86400", "24 hours"), ("604800", "7 days"))
"""Choices for the overlap of a rotation, in seconds."""


class ErrorText(NamedTuple):
    """The title of an error page, the next step, and whether it replaces the error's own text."""

    title: str
    next_step: str
    replaces_detail: bool = False


_ERRORS: Final[dict[type[DomainError], ErrorText]] = {
    ScopeEscalationError: ErrorText("Permission denied", "Ask an owner of the organization."),
    ModeMismatchError: ErrorText("Permission denied", "Ask a user who acts in live mode."),
    KeyLimitReachedError: ErrorText("Key limit reached", "Revoke an unused key, or change to a larger plan."),
    KeyNotActiveError: ErrorText("This key can't be changed", "See its status on the key's page."),
    LastOwnerError: ErrorText(
        "This is the last OWNER key",
        "Create another OWNER key, rotate this one, or make a member the owner first. Otherwise only the operator of "
        "this service could create an OWNER key.",
        replaces_detail=True,
    ),
    IdempotencyInFlightError: ErrorText(
        "Submitted twice",
        "The first submission is still being processed. Check the list of keys in a moment.",
        replaces_detail=True,
    ),
}
SHOWN_ERRORS: Final = tuple(_ERRORS)


def error_title(error: DomainError) -> str:
    """Return the title for one of `SHOWN_ERRORS`."""
    return _ERRORS[type(error)].title


def error_text(error: DomainError) -> str:
    """Return one of `SHOWN_ERRORS` as a paragraph."""
    text = _ERRORS[type(error)]
    return text.next_step if text.replaces_detail else f"{error.detail} {text.next_step}"


def conflict_text(current: dict[str, str], fields: set[str]) -> str:
    """Say what another user changed of a key while a form was open."""
    now = "; ".join(f"{name}: {current[name]}" for name in ("name", "scopes", "expiry") if name in fields)
    return f"Another user changed this key. Current {now}. Save again to replace it."


def sample_requests(base_url: str, command: str, secret: str) -> dict[str, str]:
    """Return a key's first request for several tools, by label; ``command`` runs ``tenantry``."""
    url = shlex.quote(f"{base_url}/api/v1/auth/whoami")
    base = shlex.quote(base_url)
    program = f"with Tenantry(base_url={json.dumps(base_url)}) as tenantry:\n    print(tenantry.auth.whoami())"
    return {
        "curl": f'curl -H "Authorization: Bearer {secret}" {url}',
        "Command line": f"export TENANTRY_BASE_URL={base}\nexport TENANTRY_API_KEY={secret}\n{command} whoami",
        "Python, with the secret in TENANTRY_API_KEY": f"from tenantry_sdk import Tenantry\n\n{program}",
    }
