"""What a gateway's check requires by its path: ``{scope}[/feature:NAME...][/mode/NAME][/...]``,
where the scope ``-`` accepts any credential.

The gateway's configuration writes the beginning. A gateway may append the client's path, which must
add no requirement and hide none.
"""

import functools
import re
from typing import Final
from urllib.parse import unquote

from tenantry.domain.errors import NotFoundError
from tenantry.domain.features import is_feature_id
from tenantry.domain.permissions import ACCEPTED_MODES
from tenantry.domain.requirements import Requirement
from tenantry.domain.scopes import is_scope

MOST_FEATURES: Final = 16
_REMEMBERED: Final = 256
_FEATURE: Final = "feature:"
_NO_SCOPE: Final = "-"
_EXACT_MODE: Final = re.compile(r"mode/(live|test|any)(/.*)?", re.DOTALL)
_LOOKS_REQUIRED: Final = re.compile(r"(?:^|/)(?:feature:|mode(?:/|$))", re.IGNORECASE)


@functools.lru_cache(_REMEMBERED)  # a configuration has few, and each check is read twice
def requirement_of_check(scope: str, sent: str) -> Requirement:
    """Return what a path requires by its scope and by the part that follows; that is
    percent-encoded, as ``sent``.

    A mode other than live counts only at the end of the path. Raises `NotFoundError` for what is no
    scope, and for a segment that looks like a requirement and is none in its place: in other case,
    encoded, out of order, repeated, or behind an empty segment. After an exact mode only the next
    segment is judged, because the client's path begins there.
    """
    if scope != _NO_SCOPE and not is_scope(scope):
        raise NotFoundError("scope")
    scopes = () if scope == _NO_SCOPE else (scope,)
    features, rest = _leading_features(sent)
    found = _EXACT_MODE.fullmatch(rest)
    if found is None:
        if _LOOKS_REQUIRED.search(unquote(rest)):
            raise _no_such_check()
        return Requirement(scopes, features)
    mode, added = found.groups()
    if added is None:
        return Requirement(scopes, features, ACCEPTED_MODES[mode])
    if _LOOKS_REQUIRED.match(unquote(added).lstrip("/")):
        raise _no_such_check()
    return Requirement(scopes, features)


def _leading_features(rest: str) -> tuple[tuple[str, ...], str]:
    """Return the features that a path begins with, and what follows them."""
    features = []
    while rest.startswith(_FEATURE):
        segment, _, rest = rest.partition("/")
        features.append(segment.removeprefix(_FEATURE))
    if len(features) > MOST_FEATURES or not all(map(is_feature_id, features)):
        raise _no_such_check()
    return tuple(features), rest


def _no_such_check() -> NotFoundError:
    return NotFoundError(
        "check: its path must be the scope, feature:NAME at most 16 times, and mode/live, mode/test or mode/any"
    )
