"""The identity provider's userinfo endpoint (OpenID Connect Core 5.3)."""

import asyncio
import logging
from typing import Any

import httpx2
import msgspec

from tenantry.common.json import NOT_JSON
from tenantry.common.timeouts import DEFAULT_TIMEOUTS
from tenantry.integrations.oidc.claims import verified_email
from tenantry.integrations.oidc.config import OidcConfig
from tenantry.integrations.oidc.fetch import FetchError, fetch
from tenantry.integrations.oidc.keys import KeySet

_log = logging.getLogger(__name__)


class _Answer(msgspec.Struct, frozen=True):
    sub: str
    email: Any = None
    email_verified: Any = None


class UserInfo:
    """Asks the provider about the user that a token was issued to."""

    def __init__(
        self,
        config: OidcConfig,
        keys: KeySet,
        http_client: httpx2.AsyncClient,
        *,
        timeout: float = DEFAULT_TIMEOUTS.identity_provider,
    ) -> None:
        """``timeout`` bounds each question, in seconds."""
        self._config = config
        self._keys = keys
        self._client = http_client
        self._timeout = timeout

    async def userinfo_email(self, access_token: str, subject: str) -> str | None:
        """The verified e-mail address of ``subject``, whose verified token this is.

        None when the provider has none, is away, answers for another subject, or has no userinfo endpoint that is
        safe to send a token to.
        """
        endpoint = self._keys.metadata.userinfo_endpoint if self._keys.metadata else None
        if endpoint is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                body = await fetch(
                    self._client,
                    endpoint,
                    allow_http=self._config.allow_http,
                    headers={"Authorization": f"Bearer {access_token}"},
                )
            answer = msgspec.json.decode(body, type=_Answer)
        except (httpx2.HTTPError, FetchError, TimeoutError, OSError, *NOT_JSON) as error:
            _log.warning("the identity provider's userinfo could not be read: %s", type(error).__name__)
            return None
        # OpenID Connect Core 5.3.2: an answer for another subject must not be used.
        return verified_email(answer.email, answer.email_verified) if answer.sub == subject else None
