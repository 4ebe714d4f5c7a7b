# Generated from _async/_client.py by sdk/make_sync.py: edit that file.
"""The client."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from tenantry_sdk._log import configure
from tenantry_sdk._options import Acting, CallOptions, Options
from tenantry_sdk._request import Call, Content, visible
from tenantry_sdk._response import Response
from tenantry_sdk._retry import BACKOFF, Backoff, RetrySettings
from tenantry_sdk._secret import Secret
from tenantry_sdk._settings import base_url_of, check_organization, checked_key, credential_of
from tenantry_sdk._sync._engine import Credentials, Engine
from tenantry_sdk._sync._http import Http
from tenantry_sdk._sync._operator_resources import Operator
from tenantry_sdk._sync._resources import (
    ApiKeys,
    AuditEvents,
    Auth,
    Billing,
    Entitlements,
    HealthChecks,
    Invitations,
    Members,
    Memberships,
    Plans,
    Projects,
    Rejections,
    Roles,
    Tenants,
    Usage,
)
from tenantry_sdk._sync._token_renewal import FixedCredential, TokenRenewer
from tenantry_sdk._tokens import TokenSource
from tenantry_sdk.errors import ConfigurationError
from tenantry_sdk.types import Mode

if TYPE_CHECKING:
    import httpx2
    from typing_extensions import Self, Unpack


class Tenantry:
    """A client of one service with one credential, for synchronous code.

    The credential is ``api_key``, or the access tokens of ``tokens``: a `RefreshToken`,
    `ClientCredentials`, or your function. A backend of the operator passes ``operator_token``
    (`OPERATOR_TOKEN` of the service): ``operator`` has its calls across tenants, and `tenant`
    acts for one. By default the credential is in ``TENANTRY_API_KEY`` or
    ``TENANTRY_OPERATOR_TOKEN``. Without one, ``auth.verify``, ``health`` and
    ``api_keys.report_leak`` work, and other calls raise `ConfigurationError`. ``base_url`` defaults
    to ``TENANTRY_BASE_URL``, then to http://127.0.0.1:3001. ``organization`` selects one of a
    user's organizations.

    A call takes at most ``timeout`` seconds, retries included, and each attempt at most
    ``attempt_timeout``. Both are numbers of at most a day: no call waits without a limit. Reads,
    deletions and creations are retried up to ``retries`` times if the response is lost or is 408,
    429, 502, 503 or 504; other calls are not. ``backoff`` has the delays between them.
    ``http_client`` is for proxies, certificates and tests; you close it. ``allow_http`` permits
    unencrypted connections to other machines.

    Raises `ConfigurationError`, and `TypeError` or `ValueError` for a timeout that is no number of
    seconds. It holds connections: use it in ``with``, or call `close`.
    """

    def __init__(
        self,
        api_key: str | Secret | None = None,
        *,
        base_url: str | None = None,
        operator_token: str | Secret | None = None,
        tokens: TokenSource | None = None,
        organization: str | None = None,
        timeout: float = 30.0,
        attempt_timeout: float = 10.0,
        retries: int = 3,
        http_client: httpx2.Client | None = None,
        allow_http: bool = False,
        backoff: Backoff = BACKOFF,
    ) -> None:
        for name, given in (("api_key", api_key), ("operator_token", operator_token)):
            if tokens is not None and given is not None:
                raise ConfigurationError(f"Pass {name}= or tokens=, not both.")
        retry = RetrySettings(timeout, attempt_timeout, retries, backoff)
        address = base_url_of(base_url, allow_http=allow_http)
        # a token source may use TLS where the service does not
        uses_tls = address.startswith("https:") or tokens is not None
        http = Http(http_client, uses_tls=uses_tls)
        self._is_operator = False
        credentials: Credentials
        if tokens is None:
            credential = credential_of(api_key, operator_token)
            self._is_operator = credential.is_operator
            check_organization(organization, is_operator=self._is_operator)
            credentials = FixedCredential(credential.secret)
        else:
            credentials = TokenRenewer(tokens, http)
        configure()
        self._is_copy = False
        self._bind(Engine(http, address, credentials, Options(retry, organization)))

    @property
    def base_url(self) -> str:
        """The address of the service, without a slash at the end."""
        return self._engine.base_url

    def _bind(self, engine: Engine) -> None:
        self._engine = engine
        self.api_keys: ApiKeys = ApiKeys(engine)
        self.projects: Projects = Projects(engine)
        self.tenants: Tenants = Tenants(engine)
        self.members: Members = Members(engine)
        self.roles: Roles = Roles(engine)
        self.invitations: Invitations = Invitations(engine)
        self.memberships: Memberships = Memberships(engine)
        self.plans: Plans = Plans(engine)
        self.billing: Billing = Billing(engine)
        self.entitlements: Entitlements = Entitlements(engine)
        self.usage: Usage = Usage(engine)
        self.rejections: Rejections = Rejections(engine)
        self.auth: Auth = Auth(engine)
        self.audit_events: AuditEvents = AuditEvents(engine)
        self.operator: Operator = Operator(engine)
        self.health: HealthChecks = HealthChecks(engine)

    def with_options(
        self,
        *,
        api_key: str | Secret | None = None,
        organization: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Self:
        """Return a copy of the client with other options for all its calls. Every method takes them
        too, for one call.

        The copy shares the connections; only the original closes them. Headers are added to those
        of the client. With ``api_key``, an API key or an access token, the copy acts with this
        credential, and with no organization but the one that you pass. Raises `ConfigurationError`
        for a credential that is none.
        """
        engine, is_operator = self._engine, self._is_operator
        if api_key is not None:
            engine, is_operator = engine.with_credential(checked_key(api_key)), False
        check_organization(organization, is_operator=is_operator)
        return self._copy(engine.with_options(options, organization), is_operator=is_operator)

    def tenant(
        self, tenant_id: str, *, mode: Mode = "live", on_behalf_of: str | None = None
    ) -> Self:
        """Return a copy of the operator's client that acts for a tenant, with the rights of its
        owner: ``client.tenant("acme").api_keys.create(...)``.

        It sends no request, and shares the connections. ``mode`` is that of all its calls.
        ``on_behalf_of`` says to the audit trail who of your users wants it. Calls raise
        `NotFoundError` for an unknown or ended tenant.

        Raises `ConfigurationError` for a client without ``operator_token``, and `ValueError` for an
        id that is none.
        """
        if not self._is_operator:
            raise ConfigurationError(
                "tenant() acts with the operator's token: pass operator_token=."
            )
        engine = self._engine.acting(Acting(tenant_id, mode, on_behalf_of))
        return self._copy(engine, is_operator=True)

    def _copy(self, engine: Engine, *, is_operator: bool) -> Self:
        copy = object.__new__(type(self))
        copy._is_copy = True
        copy._is_operator = is_operator
        copy._bind(engine)
        return copy

    def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Response:
        """Send any request and return its raw response. ``path`` begins with ``/api/v1/``; ``body``
        is JSON.

        It is retried like other calls, a POST only with an ``idempotency_key``, and raises the same
        errors.
        """
        if not path.startswith("/"):
            raise ValueError("path must begin with /")
        content = None if body is None else Content(body)
        key = None if idempotency_key is None else visible(idempotency_key, "idempotency_key")
        call = Call(
            method.upper(),
            path,
            query or {},
            content,
            idempotency_key=key,
        )
        return self._engine.with_options(options).send(call)

    def close(self) -> None:
        """Wait for a token renewal in progress, and close the connections. On a copy it does
        nothing.
        """
        if not self._is_copy:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Tenantry at {self.base_url}>"
