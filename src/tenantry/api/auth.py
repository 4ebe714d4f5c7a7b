"""Who am I, and the check for gateways."""

import re
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import unquote

import msgspec
from litestar import get

from tenantry.api.guards import (
    Caller,
    admit_at_once,
    authenticate,
    key_answer,
    look_up_key,
    needs,
)
from tenantry.auth.admission import Admission
from tenantry.common.encoding import doc
from tenantry.domain.access import TenantAccess, to_access
from tenantry.domain.errors import DomainError, NotFoundError
from tenantry.domain.feature_access import NO_FEATURES, listed
from tenantry.domain.gateway_paths import SCOPE_ALONE, PathRequirement, requirement_after_scope
from tenantry.domain.permissions import (
    AccessLevel,
    Mode,
    PrincipalKind,
    RequestPrincipal,
)
from tenantry.domain.scopes import is_scope
from tenantry.server.asgi_types import DirectRequest, HotRequest, HotResponse
from tenantry.server.problems import log_refused_token, refuse_domain_error

WHOAMI_PATH: Final = "/api/v1/auth/whoami"
VERIFY_PREFIX: Final = "/api/v1/auth/verify/"
VERIFY_TEMPLATE: Final = "/api/v1/auth/verify/{scope}"
PROBLEM_HEADER: Final = b"x-problem"
"""Gateways that pass on no more of a refusal than its headers (nginx) make their answer's body of
this one.
"""

_SEGMENTS_BEFORE_SCOPE: Final = VERIFY_PREFIX.count("/")
_NO_SCOPE: Final = "-"
_LIVE: Final = Mode.LIVE
_LIVE_HEADER: Final = (b"x-mode", Mode.LIVE.encode())
_TEST_HEADER: Final = (b"x-mode", Mode.TEST.encode())
_LONGEST_HEADER: Final = 256
_INVISIBLE: Final = re.compile(r"[^!-~]")


class Whoami(msgspec.Struct, frozen=True, rename="camel"):
    """The caller, as the service sees it."""

    kind: Annotated[PrincipalKind, doc("The kind of credential.", "api_key")]
    id: Annotated[
        str,
        doc(
            "The key's id, or the user's at the identity provider.",
            "key_01975c3a51c2a1b3c5d7e9f10213a5b7",
        ),
    ]
    org_id: Annotated[str, doc("The tenant that the caller acts for.", "acme")]
    mode: Annotated[Mode, doc("The caller's mode; a user's is always live.", "live")]
    scopes: Annotated[
        tuple[str, ...],
        doc(
            "What the holder may do: `<resource>:<action>`, where either part may be `*`.",
            ["projects:read", "projects:write"],
        ),
    ]
    access_level: Annotated[
        AccessLevel, doc("`OWNER` may do everything; `SCOPED` what its scopes say.", "SCOPED")
    ]
    plan: Annotated[str, doc("The tenant's plan.", "pro")]
    subscription_status: Annotated[str, doc("The tenant's subscription status.", "active")]
    access: Annotated[
        TenantAccess,
        doc("What the tenant's subscriptions give now, and the plan whose limits count."),
    ]
    expires_at: Annotated[
        datetime | None, doc("When the credential expires; null for never.", "2099-11-01T00:00:00Z")
    ]
    external_id: Annotated[str | None, doc("The key's `externalId`; null for a user.", "cus_4711")]
    metadata: Annotated[
        dict[str, str], doc("The key's `metadata`; empty for a user.", {"team": "growth"})
    ]


@get(WHOAMI_PATH, guards=[needs(None, in_quota=False)], summary="Show the caller")
async def whoami(principal: Caller) -> Whoami:
    """Return the caller as the service sees it."""
    return Whoami(
        principal.kind,
        principal.id,
        principal.org_id,
        principal.mode,
        principal.scopes,
        principal.access_level,
        principal.plan,
        principal.subscription_status,
        to_access(principal.access_phase),
        principal.expires_at,
        principal.external_id,
        principal.metadata,
    )


class GatewayCheck:
    """The hot route ``/api/v1/auth/verify/{scope}`` of reverse proxies that ask before they pass a
    request on.

    200 with the caller's identity in headers, or the refusal, its problem document in a header too.

    The path, which the gateway's own configuration writes, names the scope, and may name features
    and a mode (`tenantry.domain.gateway_paths`). The query is ignored.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def answer(self, request: HotRequest) -> HotResponse:
        """Answer any request."""
        answer = key_answer(request)
        try:
            scope, also = _required(request)
            admitted = await authenticate(
                self._admission, request.scope, request.header, answer=answer
            )
            return _identity(admitted.principal, scope, also)
        except DomainError as error:
            return _refused(request, error)

    def begin(self, request: DirectRequest) -> bool:
        """Look up the API key, as `DirectHandler.begin`."""
        _required(request)
        return look_up_key(self._admission, request)

    def finish(self, request: HotRequest) -> HotResponse | None:
        """Answer with the caller's identity, as `DirectHandler.finish`."""
        try:
            admitted = admit_at_once(self._admission, request)
            if admitted is None:
                return None
            return _identity(admitted.principal, *_required(request))
        except DomainError as error:
            return _refused(request, error)


def _required(request: HotRequest) -> tuple[str, PathRequirement]:
    """Return the scope that a path requires, and what else. Raises `NotFoundError`."""
    scope, _, rest = request.path[len(VERIFY_PREFIX) :].partition("/")
    if scope != _NO_SCOPE and not is_scope(scope):
        raise NotFoundError("scope")
    return scope, _required_after(scope, rest, request) if rest else SCOPE_ALONE


def _required_after(scope: str, rest: str, request: HotRequest) -> PathRequirement:
    """Return what a path requires after its scope. Raises `NotFoundError`."""
    raw_path: bytes | None = request.scope.get("raw_path")
    if raw_path is None:  # without encoded characters
        return requirement_after_scope(rest)
    *_, sent_scope, sent = raw_path.decode("latin-1").split("/", _SEGMENTS_BEFORE_SCOPE + 1)
    if unquote(sent_scope) != scope:  # an encoded slash is in it, or before it
        raise NotFoundError("scope")
    return requirement_after_scope(sent)


def _refused(request: HotRequest, error: DomainError) -> HotResponse:
    log_refused_token(error, request.request_id.decode())
    refusal = refuse_domain_error(error, request.request_id.decode())
    refusal.headers.append((PROBLEM_HEADER, refusal.body))
    return refusal


def _identity(principal: RequestPrincipal, scope: str, also: PathRequirement) -> HotResponse:
    """Return the identity of a principal that has what the path requires."""
    if scope != _NO_SCOPE:
        principal.require(scope)
    for feature in also.features:
        principal.feature_access.require(feature)
    if also is not SCOPE_ALONE or principal.mode is not _LIVE:
        principal.require_mode(also.modes)
    headers = [
        (b"x-tenant-id", principal.org_id.encode()),
        (b"x-principal-id", header_text(principal.id)),
        (b"x-principal-kind", principal.kind.value.encode()),
        _LIVE_HEADER if principal.mode is _LIVE else _TEST_HEADER,
        (b"x-plan", header_text(principal.plan)),
        (b"x-access", principal.access.encode()),
        (b"x-effective-plan", header_text(principal.effective_plan)),
        (b"x-subscription-status", header_text(principal.subscription_status)),
    ]
    if principal.external_id is not None:
        headers.append((b"x-key-external-id", header_text(principal.external_id)))
    if principal.feature_access is not NO_FEATURES:
        headers.append((b"x-features", listed(principal.features).encode()))
    return HotResponse(200, headers)


def header_text(text: str) -> bytes:
    """At most 256 bytes of visible ASCII: anything else becomes ``?``."""
    return _INVISIBLE.sub("?", text[:_LONGEST_HEADER]).encode()
