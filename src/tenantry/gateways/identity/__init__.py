"""The identity provider: who a bearer token was issued to, and the provider's public keys that prove it."""

from tenantry.gateways.identity.config import OidcConfig
from tenantry.gateways.identity.keys import KeySet
from tenantry.gateways.identity.tokens import Claims, TokenVerifier
from tenantry.gateways.identity.userinfo import UserInfo

__all__ = ["Claims", "KeySet", "OidcConfig", "TokenVerifier", "UserInfo"]
