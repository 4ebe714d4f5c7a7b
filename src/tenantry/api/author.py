"""Who makes a change, as the audit trail names them."""

from tenantry.api.guards import AnyRequest
from tenantry.domain.access import Principal, PrincipalKind
from tenantry.domain.audit import ActorKind, Author
from tenantry.integrations.oidc.tokens import Claims
from tenantry.server.dispatch import REQUEST_ID

_KINDS = {PrincipalKind.API_KEY: ActorKind.API_KEY, PrincipalKind.USER: ActorKind.USER}


def principal_author(request: AnyRequest, principal: Principal) -> Author:
    """A caller that a guard let in."""
    return _author(request, _KINDS[principal.kind], principal.id)


def user_author(request: AnyRequest, claims: Claims) -> Author:
    """A user who may not belong to a tenant yet."""
    return _author(request, ActorKind.USER, claims.subject)


def operator_author(request: AnyRequest) -> Author:
    """The holder of the operator's token."""
    return _author(request, ActorKind.OPERATOR, None)


def unknown_author(request: AnyRequest) -> Author:
    """Somebody without a credential."""
    return _author(request, ActorKind.ANYBODY, None)


def _author(request: AnyRequest, kind: ActorKind, actor_id: str | None) -> Author:
    address = request.client.host if request.client else None
    return Author(kind, actor_id, address, str(request.scope.get(REQUEST_ID, "")) or None)
