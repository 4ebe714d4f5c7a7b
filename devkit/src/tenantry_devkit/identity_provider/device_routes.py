"""The endpoints of RFC 8628, and the page on which a person enters the code; and that of RFC 7009."""

from typing import Any

from litestar import Response, get, post
from litestar.types import ControllerRouterHandler

from tenantry_devkit.demo.html import Pages
from tenantry_devkit.identity_provider.devices import INTERVAL, LIFETIME, Devices
from tenantry_devkit.identity_provider.grants import Grant, Grants, OAuthError
from tenantry_devkit.identity_provider.parameters import granted_scopes, with_query
from tenantry_devkit.identity_provider.requests import NO_STORE, AnyRequest, comes_from_elsewhere, parameters_of
from tenantry_devkit.identity_provider.token_endpoint import ProviderConfig, TokenEndpoint


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
