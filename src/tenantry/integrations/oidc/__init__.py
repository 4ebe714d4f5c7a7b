"""The identity provider: who a bearer token was issued to, and the provider's public keys that prove it."""

from tenantry.integrations.oidc.config import OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import Claims, TokenVerifier
from tenantry.integrations.oidc.userinfo import UserInfo

__all__ = ["Claims", "KeySet", "OidcConfig", "TokenVerifier", "UserInfo"]
