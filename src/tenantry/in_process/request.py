"""What a middleware knows of one request: its credential, its caller, and the headers of its
response.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tenantry.auth.authentication import Rejected
from tenantry.domain.errors import (
    AddressNotAllowedError,
    DomainError,
    MissingCredentialError,
    RateLimitedError,
)
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.rate_limits import RateLimitStatus
from tenantry.domain.rejections import KnownSender, RefusedRequest, sender_of
from tenantry.domain.requirements import Requirement
from tenantry.in_process.access_rules import AccessRules
from tenantry.in_process.application_request import ApplicationRequest, ClientAddress
from tenantry.in_process.tenantry import InProcessConnection
from tenantry.server.asgi_types import REQUEST_ID, Header, HotResponse, request_id_of
from tenantry.server.caching import PRIVATE
from tenantry.server.problems import (
    STATUSES,
    Refusal,
    log_refused_token,
    refuse_error,
)
from tenantry.server.rate_limit_headers import rate_headers
from tenantry.server.security_headers import SECURITY_HEADERS, missing_headers

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


@dataclass
class RequestContext:
    """What a middleware decides about one request or websocket, whatever the application's
    interface.
    """

    tenantry: InProcessConnection
    request_id: bytes
    principal: RequestPrincipal | None = None
    sender: KnownSender | None = None
    """Whose credential was rejected."""
    address: str | None = None
    """The client's."""
    find_address: ClientAddress | None = None
    """Returns the client's address; None for what the server says."""
    rate_limit_status: RateLimitStatus = ()
    depends_on_caller: bool = False  # whether the response may be another one for another caller
    started: bool = False  # whether the response has started
    # a view's; its response is sent whatever the application does with the error
    rejection: DomainError | None = None
    app: object = None
    """The framework's application around the middleware; None if the middleware wraps the
    application.
    """

    def requirement(self, rules: AccessRules, request: ApplicationRequest) -> Requirement | None:
        """Return what the caller of the request needs by an application's rules; None if it is not
        authenticated.
        """
        path = request.path
        self.depends_on_caller |= rules.depends_on_caller(path)
        has_credential = self.tenantry.has_credential(request)
        return rules.requirement(request.method, path, has_credential=has_credential)

    async def authenticate_once(self, request: ApplicationRequest) -> RequestPrincipal:
        """Authenticate and count the request once. Raises the service's refusals."""
        self.depends_on_caller = True
        if self.principal is None:
            sender = self.tenantry.sender_of(request, self.find_address)
            self.address = sender.address
            found = await self.tenantry.check(sender)
            if isinstance(found, Rejected):
                self._note_rejection(found)
                raise found.error
            self.principal = self.tenantry.caller_of(found.principal)
            self.rate_limit_status = found.rate_limits
        return self.principal

    def _note_rejection(self, rejected: Rejected) -> None:
        log_refused_token(rejected.token_fault, self.request_id)
        self.sender = rejected.sender
        if isinstance(rejected.error, AddressNotAllowedError):
            self.address = rejected.error.address
        if isinstance(rejected.error, RateLimitedError):
            self.rate_limit_status = rejected.error.rate_limits

    def may_refuse(self, error: DomainError) -> bool:
        """Whether an error of the application can be answered as a refusal of the service."""
        return type(error) in STATUSES and not self.started

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
        refusal = refuse_error(error, self.request_id.decode())
        self._record(refusal)
        if self.tenantry.resource is not None:
            self.tenantry.resource.add_to(refusal.status, refusal.headers)
        refusal.headers += [*SECURITY_HEADERS, (b"content-length", b"%d" % len(refusal.body))]
        return refusal

    def metadata(self, method: str, path: str) -> HotResponse | None:
        """Return the response to a request for the application's metadata for OAuth clients; None
        for another request.
        """
        resource = self.tenantry.resource
        response = None if resource is None else resource.find(method, path)
        if response is not None:
            response.headers.append((b"content-length", b"%d" % len(response.body)))
            response.headers += missing_headers(response.headers, SECURITY_HEADERS)
        return response

    def _record(self, refusal: Refusal) -> None:
        """Record the refusal of a request whose sender is known."""
        sender = self.sender if self.principal is None else sender_of(self.principal)
        if sender is not None:
            self.tenantry.record_rejection(
                sender,
                RefusedRequest(
                    status=refusal.status,
                    code=refusal.code,
                    needed=refusal.needed,
                    route=None,
                    request_id=self.request_id.decode(),
                    address=self.address,
                ),
            )


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


def principal_in(request: object) -> RequestPrincipal | None:
    """Return the caller of a framework's request, of an ASGI scope or of a WSGI environment; None
    if it needed and had no credential.
    """
    # a request of Django may have several of these
    mappings = [getattr(request, name, None) for name in ("META", "environ", "scope")]
    for each in (request, *mappings):
        context = context_in(each) if isinstance(each, Mapping) else None
        if context is not None:
            return context.principal
    return None


def authenticated_principal(request: object) -> RequestPrincipal:
    """Return the caller of a request, as `principal_in`. Raises `MissingCredentialError` (401)
    without one.
    """
    principal = principal_in(request)
    if principal is None:
        raise MissingCredentialError("Send a credential: Authorization: Bearer <API key or token>.")
    return principal
