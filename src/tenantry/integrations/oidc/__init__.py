"""The identity provider: who a bearer token was issued to, and the provider's public keys that prove it."""

from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.sign_in import UserInfo
from tenantry.integrations.oidc.tokens import Claims, TokenVerifier

__all__ = ["Claims", "KeySet", "OidcConfig", "TokenVerifier", "UserInfo"]
