"""Scopes: what a credential or a role grants, and what a request needs."""

import re
from collections.abc import Iterable
from typing import Final

MAX_SCOPES: Final = 64
_NAME: Final = r"(?:[a-z][a-z0-9_-]{0,31}|\*)"
SCOPE_FORM: Final = f"{_NAME}:{_NAME}"
_scope: Final = re.compile(SCOPE_FORM, re.ASCII)
ANYTHING: Final = "*:*"


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
