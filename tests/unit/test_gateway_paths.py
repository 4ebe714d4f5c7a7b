"""What the path of a gateway's check requires after its scope."""

from typing import Final

import pytest

from tenantry.domain.errors import NotFoundError
from tenantry.domain.gateway_paths import PathRequirement, requirement_after_scope
from tenantry.domain.permissions import ACCEPTED_MODES
from tests.support.cases import cases

LIVE, TEST, ANY = (ACCEPTED_MODES[name] for name in ("live", "test", "any"))
READ: Final = {
    "": PathRequirement(),
    "mode/live": PathRequirement(),
    "mode/test": PathRequirement((), TEST),
    "feature:sso": PathRequirement(("sso",), LIVE),
    "feature:sso/": PathRequirement(("sso",), LIVE),
    "feature:sso/feature:seats/mode/any": PathRequirement(("sso", "seats"), ANY),
    "/".join(16 * ["feature:sso"]): PathRequirement(16 * ("sso",), LIVE),
    # a client's path
    "projects/7": PathRequirement(),
    "features/sso/modes/any": PathRequirement(),
    "mode/any/": PathRequirement(),
    "mode/any/projects": PathRequirement(),
    "feature:sso/mode/test/projects": PathRequirement(("sso",), LIVE),
    "mode/live/x/mode/any": PathRequirement(),
    "mode/live/x/feature:sso": PathRequirement(),
    "mode/live/x/MODE/any/%66eature:sso": PathRequirement(),
    "mode/live/features": PathRequirement(),
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
    assert {path: requirement_after_scope(path) for path in READ} == READ


@cases("path", MISSPELT)
def test_segment_that_looks_like_a_requirement_and_is_none_is_refused(path: str) -> None:
    with pytest.raises(NotFoundError, match="no such check"):
        requirement_after_scope(path)
