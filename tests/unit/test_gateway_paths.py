"""What the path of a gateway's check requires after its scope."""

from typing import Final

import pytest

from tenantry.domain.errors import NotFoundError
from tenantry.domain.gateway_paths import requirement_of_check
from tenantry.domain.permissions import ACCEPTED_MODES
from tenantry.domain.requirements import Requirement
from tests.support.cases import cases

SCOPE: Final = "projects:read"
LIVE, TEST, ANY = (ACCEPTED_MODES[name] for name in ("live", "test", "any"))
READ: Final = {
    "": Requirement((SCOPE,)),
    "mode/live": Requirement((SCOPE,)),
    "mode/test": Requirement((SCOPE,), (), TEST),
    "feature:sso": Requirement((SCOPE,), ("sso",), LIVE),
    "feature:sso/": Requirement((SCOPE,), ("sso",), LIVE),
    "feature:sso/feature:seats/mode/any": Requirement((SCOPE,), ("sso", "seats"), ANY),
    "/".join(16 * ["feature:sso"]): Requirement((SCOPE,), 16 * ("sso",), LIVE),
    # a client's path
    "projects/7": Requirement((SCOPE,)),
    "features/sso/modes/any": Requirement((SCOPE,)),
    "mode/any/": Requirement((SCOPE,)),
    "mode/any/projects": Requirement((SCOPE,)),
    "feature:sso/mode/test/projects": Requirement((SCOPE,), ("sso",), LIVE),
    "mode/live/x/mode/any": Requirement((SCOPE,)),
    "mode/live/x/feature:sso": Requirement((SCOPE,)),
    "mode/live/x/MODE/any/%66eature:sso": Requirement((SCOPE,)),
    "mode/live/features": Requirement((SCOPE,)),
}
MISSPELT: Final = (
    # other case, or encoded
    "FEATURE:sso",
    "Feature:sso/mode/live",
    "feature%3Asso",
    "%66eature:sso",
    "MODE/any",
    "mode/ANY",
    "%6Dode/any",
    "mode/an%79",
    "mode%2Fany",
    "feature:sso%2Fmode%2Fany",
    # behind an empty segment
    "/feature:sso",
    "//mode/any",
    "feature:sso//feature:seats",
    "feature:sso//mode/any",
    "mode/live//feature:sso",
    # out of order, or twice
    "projects/feature:sso",
    "projects/mode/test",
    "mode/live/feature:sso",
    "mode/live/Feature%3Asso",
    "mode/any/feature:sso/mode/live",
    "mode/live/mode/any",
    "mode/live/MODE/any",
    "mode/live%2Fmode/any",
    # no such mode, or no name that a feature can have
    "mode",
    "mode/",
    "mode/tset",
    "mode/any;x",
    "mode/any%3Fx",
    "feature:",
    "feature:SSO",
    "feature:sso%20",
    "feature:sso/feature:",
    "/".join(17 * ["feature:sso"]),
)


def test_features_and_mode_are_read_in_their_place() -> None:
    assert {path: requirement_of_check(SCOPE, path) for path in READ} == READ


@cases("path", MISSPELT)
def test_segment_that_looks_like_a_requirement_and_is_none_is_refused(path: str) -> None:
    with pytest.raises(NotFoundError, match="no such check"):
        requirement_of_check(SCOPE, path)
