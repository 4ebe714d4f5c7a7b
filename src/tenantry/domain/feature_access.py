"""The features of a caller's tenant, as a program asks for them by name."""

import functools
from collections.abc import Mapping
from typing import Final

import msgspec

from tenantry.domain.access import AccessPhase
from tenantry.domain.entitlements import features_of
from tenantry.domain.errors import FeatureNotGrantedError, UnknownFeatureError
from tenantry.domain.features import Feature, Features
from tenantry.domain.plans import Catalog

MORE: Final = "..."
"""The end of a list of features from which some were cut."""
_LONGEST_TEXT: Final = 256
_TEXTS_REMEMBERED: Final = 256


# compared by identity, so that a principal with it has a hash
class FeatureAccess(msgspec.Struct, frozen=True, eq=False):
    """What a tenant has now of the features of the plan catalog."""

    given: Features = {}
    """How much of each feature that the tenant has."""
    declared: Mapping[str, Feature] = {}
    """All features of the catalog, by id."""

    @property
    def names(self) -> tuple[str, ...]:
        """The features that the tenant has, in alphabetical order."""
        return tuple(sorted(self.given))

    def has(self, feature: str) -> bool:
        """Whether the tenant has a feature. Raises `UnknownFeatureError`."""
        if feature in self.given:
            return True
        if feature not in self.declared:
            raise UnknownFeatureError(feature)
        return False

    def require(self, feature: str) -> None:
        """Raise `FeatureNotGrantedError` unless the tenant has a feature, and
        `UnknownFeatureError` for one that the catalog does not declare.
        """
        if not self.has(feature):
            raise FeatureNotGrantedError(feature)


NO_FEATURES: Final[FeatureAccess] = FeatureAccess()
"""What a tenant has of a catalog without features."""


def feature_access_of(phase: AccessPhase, catalog: Catalog) -> FeatureAccess:
    """Return what a tenant has now of the catalog's features."""
    if not catalog.features:
        return NO_FEATURES
    return FeatureAccess(features_of(phase, catalog), catalog.features)


@functools.lru_cache(_TEXTS_REMEMBERED)  # each plan gives the same ones to all its tenants
def listed(names: tuple[str, ...]) -> str:
    """Join names of features by commas. Of a list above 256 characters those that fit stay, and
    ``...`` follows them.
    """
    whole = ",".join(names)
    if len(whole) <= _LONGEST_TEXT:
        return whole
    beginning = whole[: _LONGEST_TEXT - len(MORE)]
    kept, _, _ = beginning.rpartition(",")
    return f"{kept},{MORE}"
