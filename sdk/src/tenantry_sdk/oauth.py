"""For programs that sign users in: requests to an identity provider, and the tokens in its
responses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from tenantry_sdk._response import Response
from tenantry_sdk._sync._compat import fetch
from tenantry_sdk._sync._http import Http
from tenantry_sdk._tokens import Grant, Token, checked_address, token_of
from tenantry_sdk.errors import ConnectionFailedError, TimedOutError

__all__ = ["IdentityProviderClient", "checked_address", "read_token"]

_HEADERS: Final = {"Accept": "application/json"}


class IdentityProviderClient:
    """Sends requests to an identity provider, to those of this machine without a proxy. It holds
    connections: call `close`.
    """

    def __init__(self, *, timeout: float) -> None:
        """``timeout`` is the most that a complete response takes, in seconds."""
        self._http = Http(None)
        self._timeout = timeout

    def request(self, url: str, form: Mapping[str, str] | None = None) -> Response:
        """Send a form, or without one a GET request. Redirects are not followed.

        Raises `ConnectionFailedError`, which `TimedOutError` is too, and `UnreadableAnswerError`
        for a body that is too large.
        """
        from httpx2 import HTTPError, InvalidURL, TimeoutException  # noqa: PLC0415  # slow to import

        client = self._http.client()
        method = "GET" if form is None else "POST"
        try:
            request = client.build_request(
                method,
                url,
                data=form,
                headers=_HEADERS,
                timeout=self._timeout,
            )
            return fetch(client, request, self._timeout)
        except (TimeoutException, TimeoutError):
            reason = f"no complete response within {self._timeout:g} s"
            raise TimedOutError(_no_answer(url, reason)) from None
        except (HTTPError, InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionFailedError(_no_answer(url, reason)) from None

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def read_token(grant: Grant, status: int, content: bytes) -> Token:
    """Return the tokens in the response of a token endpoint (RFC 6749, section 5.1).

    ``grant`` names the identity provider and the client. Raises `TokenRefreshError` for a response
    without a token, and `ConfigurationError` for a token that no header can carry.
    """
    return token_of(grant, Response(status, {}, content), time.time(), None)


def _no_answer(url: str, reason: str) -> str:
    return f"The identity provider at {url} does not answer: {reason}"
