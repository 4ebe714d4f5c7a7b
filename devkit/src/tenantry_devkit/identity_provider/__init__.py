"""A small OpenID provider for development: any client can sign in as any of its users."""

from tenantry_devkit.identity_provider.routes import create_identity_provider
from tenantry_devkit.identity_provider.tokens import (
    ACCESS_TOKEN_LIFETIME,
    DEFAULT_SCOPE,
    DemoUser,
    SigningKey,
    load_or_create_signing_key,
    mint_access_token,
)

__all__ = [
    "ACCESS_TOKEN_LIFETIME",
    "DEFAULT_SCOPE",
    "DemoUser",
    "SigningKey",
    "create_identity_provider",
    "load_or_create_signing_key",
    "mint_access_token",
]
