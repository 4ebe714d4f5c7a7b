"""HTTP routes of the development identity provider."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from litestar import HttpMethod, Litestar, Response, get, post, route
from litestar.config.allowed_hosts import AllowedHostsConfig
from litestar.exceptions import HTTPException
from litestar.types import ControllerRouterHandler, Scope

from tenantry.common.clock import Clock, system_clock
from tenantry.common.secret import Secret
from tenantry_devkit.demo.html import STYLE_SHEET, Pages
from tenantry_devkit.identity_provider.codes import (
    DEVICE_GRANT,
    INTERVAL,
    LIFETIME,
    NO_STORE,
    OIDC_SCOPES,
    AnyRequest,
    Client,
    Devices,
    Grant,
    Grants,
    OAuthError,
    RedirectedError,
    RefusedRequestError,
    check_may_ask,
    comes_from_elsewhere,
    granted_scopes,
    is_loopback,
    parameters_of,
    read_authorization_request,
    read_client,
    with_query,
)
from tenantry_devkit.identity_provider.token_endpoint import ProviderConfig, TokenEndpoint
from tenantry_devkit.identity_provider.tokens import (
    DemoUser,
    SigningKey,
    algorithm_of,
    public_keys,
    read_access_token,
    read_id_token_hint,
    user_claims,
)


def device_routes(config: ProviderConfig, pages: Pages, devices: Devices) -> list[ControllerRouterHandler]:
    """Where a device begins, and where a person lets it in."""

    def refuse(message: str) -> Response[str]:
        return pages.page("message.html", status_code=400, title="This sign-in cannot go on", message=message)

    @post("/device_authorization", status_code=200)
    async def begin(request: AnyRequest) -> Response[dict[str, Any]]:
        parameters = await parameters_of(request)
        if parameters.get("client_id") != config.client_id:
            raise OAuthError("invalid_client", "The client is not known.")
        device_code, user_code = devices.begin(granted_scopes(parameters.get("scope", "")))
        page = f"{config.issuer}/device"
        answer = {
            "device_code": device_code,
            "user_code": user_code,
            "verification_uri": page,
            "verification_uri_complete": with_query(page, {"user_code": user_code}),
            "expires_in": int(LIFETIME.total_seconds()),
            "interval": int(INTERVAL.total_seconds()),
        }
        return Response(answer, headers=NO_STORE)

    @get("/device")
    async def ask(request: AnyRequest) -> Response[str]:
        user_code = (await parameters_of(request)).get("user_code", "")
        return pages.page("device.html", form_action="'self'", user_code=user_code, users=config.users)

    @post("/device/choice", status_code=200)
    async def decide(request: AnyRequest) -> Response[str]:
        parameters = await parameters_of(request)
        if comes_from_elsewhere(request):
            return refuse("The choice did not come from this provider's own page.")
        user = next((user for user in config.users if user.sub == parameters.get("user")), None)
        if user is None and "deny" not in parameters:
            return refuse("No user was chosen.")
        grant = Grant(user, (), None, config.clock()) if user else None
        if not devices.decide(parameters.get("user_code", ""), grant):
            return refuse("No device waits with this code, or no longer.")
        title = f"The device is signed in as {user.name}" if user else "The device was denied"
        return pages.page("message.html", title=title, message="You can close this page.")

    return [begin, ask, decide]


def revocation_route(token_endpoint: TokenEndpoint, grants: Grants) -> ControllerRouterHandler:
    """Where a client ends a refresh token. One that is not known is no failure; access tokens end by themselves."""

    @post("/revoke", status_code=200)
    async def revoke(request: AnyRequest) -> Response[dict[str, Any]]:
        parameters = await parameters_of(request)
        token_endpoint.check_client(parameters, request.headers.get("authorization"))
        grants.revoke(parameters.get("token", ""))
        return Response({}, headers=NO_STORE)

    return revoke


_log = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 64 * 1024
_GET_OR_POST: Final = [HttpMethod.GET, HttpMethod.POST]


def create_identity_provider(
    issuer: str,
    signing_key: SigningKey,
    users: Sequence[DemoUser],
    audience: str,
    client_id: str,
    *,
    client_secret: Secret | None = None,
    clock: Clock = system_clock,
    more_routes: Sequence[ControllerRouterHandler] = (),
) -> Litestar:
    """An OpenID provider at ``issuer``, for one client, in which a click signs in as any of ``users``.

    ``users`` may change meanwhile. Access tokens are for ``audience``, ID tokens for ``client_id``. Any http(s) address
    on loopback is a redirect address of the client, none other is. With ``client_secret`` the client may authenticate,
    and then also act for itself (client_credentials), as a member of the first organization that a user has. Sign-ins
    are in memory: after a restart refresh tokens have ended, while access tokens stay good as long as the signing key
    does.
    Requests under another host name than the issuer's or localhost are refused, so that no web site can read this
    server through a name of its own (DNS rebinding). ``more_routes`` are served beside.
    """
    config = ProviderConfig(issuer, signing_key, users, audience, client_id, client_secret, clock)
    provider = _Provider(config, Pages())
    address = urlsplit(issuer)
    local = "localhost" if address.port is None else f"localhost:{address.port}"
    return Litestar(
        [*provider.routes(), *more_routes],
        after_exception=[_log_failure],
        allowed_hosts=AllowedHostsConfig(allowed_hosts=[address.netloc, local]),
        exception_handlers={OAuthError: _oauth_error},
        logging_config=None,
        openapi_config=None,
        request_max_body_size=MAX_REQUEST_BYTES,
    )


async def _log_failure(error: Exception, scope: Scope) -> None:
    if not isinstance(error, HTTPException | OAuthError):
        _log.error("%s failed", scope["path"], exc_info=error)


def _oauth_error(request: AnyRequest, error: OAuthError) -> Response[dict[str, str]]:
    headers = dict(NO_STORE)
    if error.code == "invalid_client" and "authorization" in request.headers:
        headers["WWW-Authenticate"] = 'Basic realm="token"'
    return Response(
        {"error": error.code, "error_description": error.description},
        status_code=401 if error.code == "invalid_client" else 400,
        headers=headers,
    )


def _redirect(location: str) -> Response[str]:
    return Response("", status_code=303, headers={**NO_STORE, "Location": location, "Referrer-Policy": "no-referrer"})


def _form_action(client: Client) -> str:
    """Where the choice of a user may lead: here, and on to the client, for browsers check redirects of forms too."""
    # A Content-Security-Policy has no way to write an IPv6 address.
    target = f"{urlsplit(client.redirect_uri).scheme}:" if "[" in client.origin else client.origin
    return f"'self' {target}"


class _Provider:
    def __init__(self, config: ProviderConfig, pages: Pages) -> None:
        self._config = config
        self._pages = pages
        self._grants = Grants(config.clock)
        self._devices = Devices(config.clock)
        self._token_endpoint = TokenEndpoint(config, self._grants, self._devices)

    def routes(self) -> list[ControllerRouterHandler]:
        """The handlers; those that take parameters take them from the query or from a form."""

        @get("/.well-known/openid-configuration")
        async def discovery() -> dict[str, Any]:
            return self._metadata()

        @get("/jwks")
        async def jwks() -> dict[str, Any]:
            return public_keys(self._config.signing_key)

        @route("/authorize", http_method=_GET_OR_POST, status_code=200)
        async def authorize(request: AnyRequest) -> Response[str]:
            return self._authorize(await parameters_of(request), chosen=False)

        @post("/authorize/choice")
        async def choose(request: AnyRequest) -> Response[str]:
            # The choice is made on the page above, never by a page of another site.
            if comes_from_elsewhere(request):
                return self._refuse("The choice did not come from this provider's own page.")
            return self._authorize(await parameters_of(request), chosen=True)

        @post("/token", status_code=200)
        async def token(request: AnyRequest) -> Response[dict[str, Any]]:
            answer = self._token_endpoint.answer(await parameters_of(request), request.headers.get("authorization"))
            return Response(answer, headers=NO_STORE)

        @route("/userinfo", http_method=_GET_OR_POST, status_code=200)
        async def userinfo(request: AnyRequest) -> Response[dict[str, Any]]:
            return self._userinfo(request.headers.get("authorization", ""))

        @route("/logout", http_method=_GET_OR_POST, status_code=200)
        async def logout(request: AnyRequest) -> Response[str]:
            return self._logout(await parameters_of(request))

        @get(f"/{STYLE_SHEET}")
        async def style_sheet() -> Response[str]:
            return self._pages.style_sheet()

        more = device_routes(self._config, self._pages, self._devices)
        more.append(revocation_route(self._token_endpoint, self._grants))
        return [discovery, jwks, authorize, choose, token, userinfo, logout, style_sheet, *more]

    def _metadata(self) -> dict[str, Any]:
        issuer = self._config.issuer
        secret_methods = ["client_secret_basic", "client_secret_post"] if self._config.client_secret else []
        return {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "device_authorization_endpoint": f"{issuer}/device_authorization",
            "revocation_endpoint": f"{issuer}/revoke",
            "userinfo_endpoint": f"{issuer}/userinfo",
            "jwks_uri": f"{issuer}/jwks",
            "end_session_endpoint": f"{issuer}/logout",
            "scopes_supported": list(OIDC_SCOPES),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": [
                "authorization_code",
                "refresh_token",
                DEVICE_GRANT,
                *(["client_credentials"] if self._config.client_secret else []),
            ],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [algorithm_of(self._config.signing_key)],
            "token_endpoint_auth_methods_supported": ["none", *secret_methods],
            "code_challenge_methods_supported": ["S256"],
            "claims_supported": ["sub", "name", "email", "email_verified", "org_id", "org_role"],
            "authorization_response_iss_parameter_supported": True,
            "claims_parameter_supported": False,
            "request_parameter_supported": False,
            "request_uri_parameter_supported": False,
        }

    def _refuse(self, message: str) -> Response[str]:
        return self._pages.page("message.html", status_code=400, title="This sign-in cannot go on", message=message)

    def _authorize(self, parameters: dict[str, str], *, chosen: bool) -> Response[str]:
        """Show the users, or, once one is ``chosen`` or the client's hint names one, send the client its code."""
        config = self._config
        try:
            client = read_client(parameters, config.client_id)
        except RefusedRequestError as error:
            return self._refuse(str(error))
        try:
            asked = read_authorization_request(parameters)
            user = self._user(parameters.get("user") if chosen else parameters.get("login_hint"))
            check_may_ask(parameters, known=user is not None and not chosen)
        except RedirectedError as error:
            return _redirect(client.location(config.issuer, error=error.code, error_description=error.description))
        if user is None and not chosen:
            hidden = {name: text for name, text in parameters.items() if name != "user"}
            return self._pages.page(
                "users.html", form_action=_form_action(client), client=client, users=config.users, parameters=hidden
            )
        if user is None:
            return _redirect(client.location(config.issuer, error="access_denied", error_description="No user chosen."))
        grant = Grant(user, asked.scopes, asked.nonce, config.clock())
        code = self._grants.new_code(grant, redirect_uri=client.redirect_uri, code_challenge=asked.code_challenge)
        return _redirect(client.location(config.issuer, code=code))

    def _user(self, sub: object) -> DemoUser | None:
        return next((user for user in self._config.users if user.sub == sub), None)

    def _userinfo(self, authorization: str) -> Response[dict[str, Any]]:
        """OpenID Connect Core 5.3; refusals as in RFC 6750 section 3."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return Response({}, status_code=401, headers={"WWW-Authenticate": "Bearer"})
        config = self._config
        claims: Mapping[str, Any] = (
            read_access_token(
                token.strip(), config.signing_key, issuer=config.issuer, audience=config.audience, now=config.clock()
            )
            or {}
        )
        scopes = tuple(str(claims.get("scope", "")).split(" "))
        user = self._user(claims.get("sub"))
        if claims and "openid" not in scopes:
            challenge = 'Bearer error="insufficient_scope", scope="openid"'
            return Response({"error": "insufficient_scope"}, status_code=403, headers={"WWW-Authenticate": challenge})
        if user is None:
            challenge = 'Bearer error="invalid_token"'
            return Response({"error": "invalid_token"}, status_code=401, headers={"WWW-Authenticate": challenge})
        return Response({"sub": user.sub, **user_claims(user, scopes)}, headers=NO_STORE)

    def _logout(self, parameters: dict[str, str]) -> Response[str]:
        """RP-Initiated Logout. Nobody stays signed in here; what ends are the refresh tokens of the hinted user."""
        config = self._config
        hint = parameters.get("id_token_hint")
        sub = hint and read_id_token_hint(hint, config.signing_key, issuer=config.issuer, client_id=config.client_id)
        if sub:
            self._grants.end(sub)
        target = parameters.get("post_logout_redirect_uri")
        if target is None:
            return self._pages.page("message.html", title="Signed out", message="You can close this page.")
        if not is_loopback(target) or not (sub or parameters.get("client_id") == config.client_id):
            return self._refuse("post_logout_redirect_uri needs a loopback address, and client_id or id_token_hint.")
        state = parameters.get("state")
        return _redirect(with_query(target, {} if state is None else {"state": state}))
