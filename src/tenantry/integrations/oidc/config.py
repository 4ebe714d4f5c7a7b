"""Which identity provider is trusted, and where its tokens say what we need."""

import msgspec


class OidcConfig(msgspec.Struct, frozen=True):
    """The identity provider of one deployment.

    ``issuer`` and ``audience`` are compared exactly with the token's ``iss`` and ``aud``. ``client_id`` is
    that of the dashboard: a token for it alone is an ID token and refused, so ``audience`` must differ from it.
    The claim names are tried as they stand, then as a path of member names joined by dots.
    ``allow_http`` lets a plain-http issuer that is not on loopback pass; its keys can then be forged on the way.
    """

    issuer: str
    audience: str
    client_id: str | None = None
    org_claim: str = "org_id"
    role_claim: str = "org_role"
    allow_http: bool = False
