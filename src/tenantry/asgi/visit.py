"""One request on its way through the application: its id, and who sends it, as soon as that is known."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from tenantry.domain.access import Principal
from tenantry.domain.errors import MissingCredentialError, RateLimitedError
from tenantry.domain.rate_limits import Standing
from tenantry.server.asgi_types import Scope
from tenantry.server.problems import Header
from tenantry.server.rate_limits import rate_headers

if TYPE_CHECKING:
    from tenantry.asgi.tenantry import Tenantry

PRINCIPAL: Final = "tenantry.principal"
"""Where the ASGI scope holds the caller; None where nobody was asked for."""
VISIT: Final = "tenantry.visit"


class HasScope(Protocol):
    """A request or websocket of a framework."""

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """The ASGI scope."""


class Visit:
    """A request or websocket that came through the middleware."""

    __slots__ = ("app", "principal", "request_id", "standing", "started", "tenantry")

    def __init__(self, tenantry: "Tenantry", request_id: bytes) -> None:
        self.tenantry = tenantry
        self.request_id = request_id
        self.principal: Principal | None = None
        self.standing: Standing = ()
        self.started = False
        """Whether the answer has begun."""
        self.app: object = None
        """The framework's application whose refusals the middleware sees; None for one that wraps it from outside."""

    def headers_over(self, headers: Iterable[Header]) -> list[Header]:
        """The headers of an answer, with the request's id and the caller's limits in place of any of these names."""
        ours = [(b"x-request-id", self.request_id), *rate_headers(self.standing)]
        names = {name for name, _ in ours}
        return [*((name, value) for name, value in headers if name.lower() not in names), *ours]

    async def admit(self, scope: Scope) -> Principal:
        """Who sends this. Asked once: whoever asks again gets the same answer. Raises the refusals of the service."""
        if self.principal is None:
            try:
                admitted = await self.tenantry.admit(scope)
            except RateLimitedError as error:
                self.standing = error.standing
                raise
            self.principal, self.standing = admitted.principal, admitted.standing
        scope[PRINCIPAL] = self.principal
        return self.principal


def visit_of(scope: Mapping[str, Any]) -> Visit | None:
    """The visit that a middleware has begun."""
    visit = scope.get(VISIT)
    return visit if isinstance(visit, Visit) else None


def optional_principal_of(request: Mapping[str, Any] | HasScope) -> Principal | None:
    """The caller of a request (or its ASGI scope); None where no credential was needed and none was sent."""
    scope = request if isinstance(request, Mapping) else request.scope
    principal = scope.get(PRINCIPAL)
    return principal if isinstance(principal, Principal) else None


def principal_of(request: Mapping[str, Any] | HasScope) -> Principal:
    """The caller of a request (or its ASGI scope). Without one it raises `MissingCredentialError`: 401."""
    principal = optional_principal_of(request)
    if principal is None:
        raise MissingCredentialError("Send a credential: Authorization: Bearer <API key or token>.")
    return principal
