"""Tokens of the users of tests, signed by an identity provider that the service trusts."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tenantry.common.clock import system_clock
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry_devkit.identity_provider import DEFAULT_SCOPE, DemoUser, SigningKey, mint_access_token
from tenantry_devkit.testing.masking import Credential

LIFETIME = timedelta(hours=1)


class Issuer:
    """Makes access tokens; ``users``, which the provider serves, learns of everyone who gets one."""

    def __init__(self, config: OidcConfig, signing_key: SigningKey, users: list[DemoUser]) -> None:
        self._config = config
        self._signing_key = signing_key
        self._users = users

    def token(
        self,
        user: str,
        org_id: str | None,
        *,
        role: str | None,
        scope: str | None,
        expires_in: timedelta | float,
        email: str | None,
        claims: Mapping[str, Any],
    ) -> Credential:
        """An access token; one that ends in the past was issued an hour before."""
        config = self._config
        known = DemoUser(user, user, email, org_id, role)
        self._users[:] = [other for other in self._users if other.sub != user] + [known]
        organization = {config.org_claim: org_id, config.role_claim: role}
        lifetime = expires_in if isinstance(expires_in, timedelta) else timedelta(seconds=expires_in)
        late = timedelta(0) if lifetime > timedelta(0) else LIFETIME - lifetime
        minted = mint_access_token(
            self._signing_key,
            issuer=config.issuer,
            audience=config.audience,
            client_id=config.client_id or "",
            user=DemoUser(user, user, email),
            lifetime=lifetime if lifetime > timedelta(0) else LIFETIME,
            scope=DEFAULT_SCOPE if scope is None else scope,
            clock=lambda: system_clock() - late,
            more_claims={**{name: text for name, text in organization.items() if text is not None}, **claims},
        )
        return Credential(minted)
