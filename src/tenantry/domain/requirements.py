"""What a caller needs for a request: of a route, of a gateway's check, or of an application that
authenticates in its own process.
"""

import msgspec

from tenantry.domain.permissions import ACCEPTED_MODES, Mode, RequestPrincipal


class Requirement(msgspec.Struct, frozen=True):
    """All of ``scopes``, all of ``features``, and a credential of one of ``modes``."""

    scopes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = ACCEPTED_MODES["live"]

    def check(self, principal: RequestPrincipal) -> None:
        """Raise `InsufficientScopeError`, `FeatureNotGrantedError` or `ModeMismatchError` for a
        caller that does not meet it, and `UnknownFeatureError` if the plan catalog does not declare
        the feature.
        """
        for scope in self.scopes:
            principal.require(scope)
        for feature in self.features:
            principal.feature_access.require(feature)
        principal.require_mode(self.modes)
