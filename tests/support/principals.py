"""Callers and keys as plain values, for tests of the rules."""

import json
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tenantry.domain.access import NOTHING, AccessPhase
from tenantry.domain.api_keys import ApiKey, KeyStatus
from tenantry.domain.feature_access import FeatureAccess
from tenantry.domain.permissions import AccessLevel, Mode, PrincipalKind, RequestPrincipal
from tenantry.domain.plans import parse_catalog
from tenantry.domain.scopes import ANYTHING

ONLY_FREE: Final = parse_catalog('[[plans]]\nid = "free"\n')
NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def make_principal(
    *scopes: str,
    owner: bool = False,
    mode: Mode = Mode.LIVE,
    kind: PrincipalKind = PrincipalKind.API_KEY,
    expires_at: datetime | None = None,
) -> RequestPrincipal:
    """A caller of the tenant ``acme``; an owner holds everything."""
    return RequestPrincipal(
        kind=kind,
        id="caller",
        org_id="acme",
        mode=mode,
        scopes=(ANYTHING,) if owner else scopes,
        access_level=AccessLevel.OWNER if owner else AccessLevel.SCOPED,
        plan="free",
        subscription_status="none",
        access_phase=NOTHING,
        expires_at=expires_at,
    )


def on_plan(principal: RequestPrincipal, plan: str) -> RequestPrincipal:
    """The same caller, of a tenant that has full access to this plan."""
    access = AccessPhase("full", plan, "The subscription is active.")
    return msgspec.structs.replace(
        principal, plan=plan, subscription_status="active", access_phase=access
    )


def with_features(principal: RequestPrincipal, access: FeatureAccess) -> RequestPrincipal:
    """The same caller, of a tenant with these features."""
    return msgspec.structs.replace(principal, feature_access=access)


def make_key(
    *scopes: str,
    owner: bool = False,
    mode: Mode = Mode.LIVE,
    expires_at: datetime | None = None,
    key_id: str = "key",
) -> ApiKey:
    """An active key of the tenant ``acme``."""
    return ApiKey(
        id=key_id,
        org_id="acme",
        name="key",
        scopes=(ANYTHING,) if owner else scopes,
        access_level=AccessLevel.OWNER if owner else AccessLevel.SCOPED,
        mode=mode,
        expires_at=expires_at,
        status=KeyStatus.ACTIVE,
        start="svc_live_0000",
        last4="0000",
        created_at=NOW,
        created_by="caller",
        last_used_at=None,
        revoked_at=None,
        rotated_from=None,
        superseded_by=None,
    )


def principal_of(key: ApiKey) -> RequestPrincipal:
    """The holder of this key."""
    return RequestPrincipal(
        kind=PrincipalKind.API_KEY,
        id=key.id,
        org_id=key.org_id,
        mode=key.mode,
        scopes=key.scopes,
        access_level=key.access_level,
        plan="free",
        subscription_status="none",
        access_phase=NOTHING,
        expires_at=key.expires_at,
    )


def as_json(principal: RequestPrincipal) -> dict[str, Any]:
    """What an application's code knows of its caller."""
    shown: dict[str, Any] = json.loads(msgspec.json.encode(principal, enc_hook=lambda _: None))
    hidden = (
        "accessPhase",
        "issuer",
        "claimedRole",
        "metadataDocument",
        "allowedAddresses",
        "requestsPerMinute",
        "featureAccess",
        "gives",
        "roles",
        "consumer",
        "returner",
    )
    for name in hidden:
        shown.pop(name, None)
    return {
        **shown,
        "access": msgspec.to_builtins(principal.access),
        "effectivePlan": principal.effective_plan,
        "metadata": principal.metadata,
    }
