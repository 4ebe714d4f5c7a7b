"""What a middleware knows of one request: its credential, its caller, and the headers of its
response.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tenantry.auth.admission import Admitted
from tenantry.domain.errors import DomainError, MissingCredentialError, RateLimitedError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.rate_limits import RateLimitStatus
from tenantry.in_process.tenantry import Credentials
from tenantry.server.asgi_types import REQUEST_ID, Header, request_id_of
from tenantry.server.caching import PRIVATE, CallerVary
from tenantry.server.problems import Refusal, internal_error, log_refused_token, refuse_domain_error
from tenantry.server.rate_limit_headers import rate_headers
from tenantry.server.security_headers import SECURITY_HEADERS

CONTEXT: Final = "tenantry.context"
"""The key of a request's `RequestContext` in its ASGI scope or WSGI environment."""
IDENTITY_HEADERS: Final = frozenset(
    {
        "x-tenant-id",
        "x-principal-id",
        "x-principal-kind",
        "x-mode",
        "x-plan",
        "x-subscription-status",
        "x-access",
        "x-effective-plan",
        "x-key-external-id",
        "x-features",
    }
)
"""Headers by which a gateway names the caller. Clients must not set them."""

logger = logging.getLogger(__name__)


class SupportsAuthenticate(Protocol):
    """A connection to the service's database."""

    @property
    def vary(self) -> CallerVary:
        """Tells caches which headers say who the caller is."""

    async def authenticate(self, credentials: Credentials) -> Admitted:
        """Authenticate and count a request. Raises the service's refusals (`DomainError`)."""


@dataclass
class RequestContext:
    """The middleware's data of one request or websocket."""

    tenantry: SupportsAuthenticate
    request_id: bytes
    principal: RequestPrincipal | None = None
    rate_limit_status: RateLimitStatus = ()
    depends_on_caller: bool = False  # whether the response may be another one for another caller
    started: bool = False  # whether the response has started
    # a view's; its response is sent whatever the application does with the error
    rejection: DomainError | None = None
    app: object = None
    """The framework's application around the middleware; None if the middleware wraps the
    application.
    """

    async def authenticate_once(self, credentials: Credentials) -> RequestPrincipal:
        """Authenticate and count the request once. Raises the service's refusals."""
        self.depends_on_caller = True
        if self.principal is None:
            try:
                admitted = await self.tenantry.authenticate(credentials)
            except RateLimitedError as error:
                self.rate_limit_status = error.rate_limits
                raise
            except DomainError as error:
                log_refused_token(error, self.request_id.decode())
                raise
            self.principal = admitted.principal
            self.rate_limit_status = admitted.rate_limits
        return self.principal

    def headers_over(self, headers: Iterable[Header]) -> list[Header]:
        """Complete the headers of a response: the request id, the rate limits, and what caches must
        know.
        """
        ours = [(b"x-request-id", self.request_id), *rate_headers(self.rate_limit_status)]
        names = {name for name, _ in ours}
        complete = [header for header in headers if header[0].lower() not in names] + ours
        if self.depends_on_caller:
            self.tenantry.vary.add_to(complete)
            if all(name.lower() != PRIVATE[0] for name, _ in complete):
                complete.append(PRIVATE)
        return complete

    def refusal(self, error: Exception) -> Refusal:
        """Return the response to a request that could not be admitted, and log an error that is no
        refusal.
        """
        self.depends_on_caller = True
        request_id = self.request_id.decode()
        if isinstance(error, DomainError):
            refusal = refuse_domain_error(error, request_id)
        else:
            logger.error("request %s failed", request_id, exc_info=error)
            refusal = internal_error(request_id)
        refusal.headers += [*SECURITY_HEADERS, (b"content-length", b"%d" % len(refusal.body))]
        return refusal


def request_id_in(request: Mapping[str, Any], given: bytes | None) -> bytes:
    """Return the id that an outer middleware with another database gave a request, else that of
    its ``X-Request-Id``.
    """
    known = request.get(REQUEST_ID)
    return request_id_of(given) if known is None else str(known).encode()


def context_in(request: Mapping[str, Any]) -> RequestContext | None:
    """Return the context of an ASGI scope or a WSGI environment; None if no middleware has set
    it.
    """
    context = request.get(CONTEXT)
    return context if isinstance(context, RequestContext) else None


def optional_principal_in(request: Mapping[str, Any]) -> RequestPrincipal | None:
    context = context_in(request)
    return None if context is None else context.principal


def principal_in(request: Mapping[str, Any]) -> RequestPrincipal:
    """Return the caller of a request. Raises `MissingCredentialError` (401) without one."""
    principal = optional_principal_in(request)
    if principal is None:
        raise MissingCredentialError("Send a credential: Authorization: Bearer <API key or token>.")
    return principal
