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
from tenantry.domain.access import TenantAccess
from tenantry.domain.errors import DomainError, NotFoundError, OrgSuspendedError
from tenantry.domain.feature_access import NO_FEATURES, listed
from tenantry.domain.gateway_paths import requirement_of_check
from tenantry.domain.permissions import (
    AccessLevel,
    Mode,
    PrincipalKind,
    RequestPrincipal,
)
from tenantry.domain.requirements import Requirement
from tenantry.server.asgi_types import DirectRequest, HotRequest, HotResponse
from tenantry.server.problems import refuse_domain_error

WHOAMI_PATH: Final = "/api/v1/auth/whoami"
VERIFY_PREFIX: Final = "/api/v1/auth/verify/"
VERIFY_TEMPLATE: Final = "/api/v1/auth/verify/{scope}"
PROBLEM_HEADER: Final = b"x-problem"
"""Gateways that pass on no more of a refusal than its headers (nginx) make their answer's body of
this one.
"""

_SEGMENTS_BEFORE_SCOPE: Final = VERIFY_PREFIX.count("/")
_LIVE: Final = Mode.LIVE
_LIVE_HEADER: Final = (b"x-mode", Mode.LIVE.encode())
_TEST_HEADER: Final = (b"x-mode", Mode.TEST.encode())
_LONGEST_HEADER: Final = 256
_LONGEST_PROBLEM: Final = 1024
_INVISIBLE: Final = re.compile(r"[^!-~]")


class Whoami(msgspec.Struct, frozen=True, rename="camel"):
    """The caller, as the service sees it."""

    kind: Annotated[PrincipalKind, doc("The kind of credential.", "api_key")]
    id: Annotated[
        str,
        doc(
            "The key's id, the user's at the identity provider, or `operator`.",
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
    plan: Annotated[str, doc("The plan that the provider last said.", "pro")]
    subscription_status: Annotated[str, doc("The status that the provider last said.", "active")]
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
        principal.access,
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
            needed = _required(request)
            admitted = await authenticate(self._admission, request, answer=answer)
            return _identity(admitted.principal, needed)
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
            return _identity(admitted.principal, _required(request))
        except DomainError as error:
            return _refused(request, error)


def _required(request: HotRequest) -> Requirement:
    """Return what a path requires. Raises `NotFoundError`."""
    scope, _, rest = request.path[len(VERIFY_PREFIX) :].partition("/")
    return requirement_of_check(scope, _as_sent(scope, rest, request) if rest else "")


def _as_sent(scope: str, rest: str, request: HotRequest) -> str:
    """Return what follows the scope in a path, percent-encoded. Raises `NotFoundError`."""
    raw_path: bytes | None = request.scope.get("raw_path")
    if raw_path is None:  # without encoded characters
        return rest
    *_, sent_scope, sent = raw_path.decode("latin-1").split("/", _SEGMENTS_BEFORE_SCOPE + 1)
    if unquote(sent_scope) != scope:  # an encoded slash is in it, or before it
        raise NotFoundError("scope")
    return sent


def _fits_header(problem: bytes) -> bool:
    """Whether gateways pass a problem on in a header: nginx has 4 KiB for all of them."""
    return problem.isascii() and len(problem) <= _LONGEST_PROBLEM


def _refused(request: HotRequest, error: DomainError) -> HotResponse:
    request_id = request.request_id.decode()
    refusal = refuse_domain_error(error, request_id)
    short = refusal
    if isinstance(error, OrgSuspendedError) and not _fits_header(refusal.body):
        short = refuse_domain_error(OrgSuspendedError(), request_id)
    refusal.headers.append((PROBLEM_HEADER, short.body))
    return refusal


def _identity(principal: RequestPrincipal, needed: Requirement) -> HotResponse:
    """Return the identity of a principal that has what the path requires."""
    needed.check(principal)
    headers = [
        (b"x-tenant-id", principal.org_id.encode()),
        (b"x-principal-id", header_text(principal.id)),
        (b"x-principal-kind", principal.kind.value.encode()),
        _LIVE_HEADER if principal.mode is _LIVE else _TEST_HEADER,
        (b"x-plan", header_text(principal.plan)),
        (b"x-access", principal.access_phase.state.encode()),
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
