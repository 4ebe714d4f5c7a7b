"""Cross-origin requests: which pages of other origins may read the API's responses (CORS, Fetch
standard section 3.3).

Pages send their own credential in a header. No cookie counts on the API, so no response permits
credentials.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from tenantry.server.asgi_types import Header, HotRequest, HotResponse, HotRoute, Scope, header_of

ANY_ORIGIN: Final = "*"
CORS_POLICY: Final = "tenantry.cors_policy"
"""Key of the `CorsPolicy` in the ASGI lifespan state; absent where no other origin may call the
API.
"""
ALLOWED_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
ALLOWED_HEADERS: Final = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "X-Organization-Id",
    "X-Request-Id",
    "traceparent",
    "tracestate",
)
"""The request headers that the API always reads, and the one that tracing in a browser sends with
``traceparent``.
"""
EXPOSED_HEADERS: Final = (
    "X-Request-Id",
    "Location",
    "Retry-After",
    "RateLimit",
    "RateLimit-Policy",
    "WWW-Authenticate",
    "X-Tenant-Id",
    "X-Principal-Id",
    "X-Principal-Kind",
    "X-Mode",
    "X-Plan",
    "X-Subscription-Status",
    "X-Access",
    "X-Effective-Plan",
    "X-Key-External-Id",
    "X-Features",
)
"""The response headers that clients need; the last ones identify the caller of a checked
request.
"""

_API: Final = "/api/v1/"
_WEBHOOKS: Final = "/api/v1/webhooks/"
_MAX_AGE: Final = b"7200"  # seconds: the most that Chromium remembers a preflight
_ALLOW_ORIGIN: Final = b"access-control-allow-origin"
_EXPOSED: Final[Header] = (b"access-control-expose-headers", ", ".join(EXPOSED_HEADERS).encode())
_VARIES: Final[Header] = (b"vary", b"Origin")
_OF_ANY: Final[Sequence[Header]] = ((_ALLOW_ORIGIN, b"*"), _EXPOSED)
_NONE: Final[Sequence[Header]] = ()


class CorsPolicy:
    """Permits pages of these origins, or of any (`ANY_ORIGIN`), to call the API, the webhook
    excepted.

    Pages of any origin may read the ``public_paths``, without a preflight, so without a credential.
    """

    def __init__(
        self,
        origins: Collection[str],
        public_paths: Collection[str] = (),
        api_key_header: str | None = None,
    ) -> None:
        """``api_key_header`` names the header for API keys, which pages may then send."""
        self._public_paths = frozenset(public_paths)
        self._allows_any = ANY_ORIGIN in origins
        listed = () if self._allows_any else origins
        self._of_listed: Mapping[bytes | None, Sequence[Header]] = {
            origin.encode(): ((_ALLOW_ORIGIN, origin.encode()), _EXPOSED, _VARIES)
            for origin in listed
        }
        self._of_others: Sequence[Header] = _OF_ANY if self._allows_any else (_VARIES,)
        self.preflight_route: Final = HotRoute("preflight", self._answer_preflight)
        allowed = ALLOWED_HEADERS if api_key_header is None else (*ALLOWED_HEADERS, api_key_header)
        self._preflight: Sequence[Header] = (
            (b"access-control-allow-methods", ", ".join(ALLOWED_METHODS).encode()),
            (b"access-control-allow-headers", ", ".join(allowed).encode()),
            (b"access-control-max-age", _MAX_AGE),
        )

    def headers_of(self, scope: Scope) -> Sequence[Header]:
        """Return the headers of the response to a request."""
        return self._headers(scope["path"], header_of(scope, b"origin"))

    def headers_of_target(self, target: bytes, origin: bytes | None) -> Sequence[Header]:
        """Return the headers of the response to a request that the server rejects before it has a
        scope.
        """
        return self._headers(unquote_to_bytes(target.partition(b"?")[0]).decode("latin-1"), origin)

    def answers_preflight(self, scope: Scope) -> bool:
        """Whether a request is a preflight of a page that is permitted to call the API.

        A gateway may ask about a preflight of its own application with the method and the headers
        of that. Only the credential counts there, so a request with ``X-Forwarded-Method``, which
        no browser sends, is no preflight.
        """
        origin = header_of(scope, b"origin")
        return (
            origin is not None
            and header_of(scope, b"access-control-request-method") is not None
            and header_of(scope, b"x-forwarded-method") is None
            and (self._allows_any or origin in self._of_listed)
            and is_api(scope["path"])
        )

    async def _answer_preflight(self, _: HotRequest) -> HotResponse:
        """Permit the request that follows, with 204: Envoy's ``ext_authz`` takes a 200 for an
        accepted caller.
        """
        return HotResponse(204, [*self._preflight])

    def _headers(self, path: str, origin: bytes | None) -> Sequence[Header]:
        if path in self._public_paths:
            return _OF_ANY
        return self._of_listed.get(origin, self._of_others) if is_api(path) else _NONE


def is_api(path: str) -> bool:
    """Whether an address takes a caller's credential, or is documented beside those that do."""
    return path.startswith(_API) and not path.startswith(_WEBHOOKS)
