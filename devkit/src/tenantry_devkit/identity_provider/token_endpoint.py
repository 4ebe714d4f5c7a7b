"""The token endpoint (RFC 6749 sections 4.1.3, 4.4 and 6; RFC 7636; RFC 8628)."""

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from tenantry.common.clock import Clock
from tenantry.common.secret import Secret
from tenantry_devkit.identity_provider import codes as devices
from tenantry_devkit.identity_provider.codes import OIDC_SCOPES, Devices, Grant, Grants, OAuthError, granted_scopes
from tenantry_devkit.identity_provider.tokens import (
    ACCESS_TOKEN_LIFETIME,
    DemoUser,
    SigningKey,
    mint_access_token,
    mint_id_token,
)

# RFC 7636 section 4.1.
_verifier = re.compile(r"[A-Za-z0-9._~-]{43,128}")


class ProviderConfig(msgspec.Struct, frozen=True):
    """What one provider serves; the arguments of `create_identity_provider`."""

    issuer: str
    signing_key: SigningKey
    users: Sequence[DemoUser]
    audience: str
    client_id: str
    client_secret: Secret | None
    clock: Clock

    @property
    def machine(self) -> DemoUser:
        """As whom the client itself acts: a member of the first organization that a user has."""
        org_id = next((user.org_id for user in self.users if user.org_id), None)
        return DemoUser(self.client_id, self.client_id, None, org_id, "member" if org_id else None)


class TokenEndpoint:
    """Turns codes, refresh tokens, device codes and the client's own secret into tokens."""

    def __init__(self, config: ProviderConfig, grants: Grants, devices: Devices) -> None:
        self._config = config
        self._grants = grants
        self._devices = devices

    def answer(self, parameters: dict[str, str], authorization: str | None) -> dict[str, Any]:
        """The JSON answer (RFC 6749 section 5.1); ``authorization`` is the header of that name.

        Raises `OAuthError`.
        """
        is_authenticated = self.check_client(parameters, authorization)
        match parameters.get("grant_type"):
            case "authorization_code":
                return self._with_code(parameters)
            case "refresh_token":
                return self._with_refresh_token(parameters)
            case devices.DEVICE_GRANT:
                return self._with_device_code(parameters)
            case "client_credentials":
                if not is_authenticated:
                    raise OAuthError("invalid_client", "client_credentials needs the client's secret.")
                return self._for_the_client(parameters)
            case None:
                raise OAuthError("invalid_request", "grant_type is missing.")
            case _:
                raise OAuthError("unsupported_grant_type", "This grant_type is not supported.")

    def _with_code(self, parameters: dict[str, str]) -> dict[str, Any]:
        code_verifier = _needed(parameters, "code_verifier")
        if _verifier.fullmatch(code_verifier) is None:
            raise OAuthError("invalid_grant", "code_verifier is malformed.")
        grant, refresh_token = self._grants.redeem(
            _needed(parameters, "code"), redirect_uri=_needed(parameters, "redirect_uri"), code_verifier=code_verifier
        )
        return self._tokens(grant, grant.scopes, refresh_token, grant.nonce)

    def _with_refresh_token(self, parameters: dict[str, str]) -> dict[str, Any]:
        scopes = tuple(parameters["scope"].split(" ")) if "scope" in parameters else None
        grant, refresh_token = self._grants.rotate(_needed(parameters, "refresh_token"), scopes)
        # OpenID Connect Core 12.2: an ID token made by a refresh should not have a nonce.
        return self._tokens(grant, scopes or grant.scopes, refresh_token, nonce=None)

    def _with_device_code(self, parameters: dict[str, str]) -> dict[str, Any]:
        device_code = _needed(parameters, "device_code")
        grant = self._devices.ask(device_code)
        return self._tokens(grant, grant.scopes, self._grants.begin(grant, device_code), nonce=None)

    def _for_the_client(self, parameters: dict[str, str]) -> dict[str, Any]:
        scopes = tuple(scope for scope in granted_scopes(parameters.get("scope", "")) if scope not in OIDC_SCOPES)
        return self._access_token(self._config.machine, scopes)

    def _access_token(self, user: DemoUser, scopes: tuple[str, ...]) -> dict[str, Any]:
        config = self._config
        scope = " ".join(scopes)
        access_token = mint_access_token(
            config.signing_key,
            issuer=config.issuer,
            audience=config.audience,
            client_id=config.client_id,
            user=user,
            scope=scope,
            clock=config.clock,
        )
        expires_in = int(ACCESS_TOKEN_LIFETIME.total_seconds())
        return {"access_token": access_token, "token_type": "Bearer", "expires_in": expires_in, "scope": scope}

    def _tokens(self, grant: Grant, scopes: tuple[str, ...], refresh_token: str, nonce: str | None) -> dict[str, Any]:
        config = self._config
        answer = {**self._access_token(grant.user, scopes), "refresh_token": refresh_token}
        if "openid" not in scopes:
            return answer
        id_token = mint_id_token(
            config.signing_key,
            issuer=config.issuer,
            client_id=config.client_id,
            user=grant.user,
            access_token=answer["access_token"],
            nonce=nonce,
            authenticated_at=grant.authenticated_at,
            scopes=scopes,
            clock=config.clock,
        )
        return {**answer, "id_token": id_token}

    def check_client(self, parameters: dict[str, str], authorization: str | None) -> bool:
        """Whether the client proved itself by its secret. It need not (PKCE binds the code), but must not fail to."""
        client_id, secret = parameters.get("client_id"), parameters.get("client_secret")
        if authorization is not None:
            if secret is not None:
                raise OAuthError("invalid_request", "The client authenticates in two ways.")
            basic_id, secret = _basic(authorization)
            if client_id not in {None, basic_id}:
                raise OAuthError("invalid_request", "The client has two ids.")
            client_id = basic_id
        if client_id != self._config.client_id:
            raise OAuthError("invalid_client", "The client is not known.")
        if secret is None:
            return False
        expected = self._config.client_secret
        if expected is None or not hmac.compare_digest(secret.encode(), expected.reveal().encode()):
            raise OAuthError("invalid_client", "The client's secret is wrong.")
        return True


def _needed(parameters: dict[str, str], name: str) -> str:
    if name not in parameters:
        raise OAuthError("invalid_request", f"{name} is missing.")
    return parameters[name]


def _basic(authorization: str) -> tuple[str, str]:
    """The id and secret in a Basic header; both are form-encoded first (RFC 6749 section 2.3.1)."""
    scheme, _, credentials = authorization.partition(" ")
    try:
        decoded = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        decoded = ""
    client_id, colon, secret = decoded.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise OAuthError("invalid_client", "The Authorization header is not a Basic one.")
    return unquote_plus(client_id), unquote_plus(secret)
