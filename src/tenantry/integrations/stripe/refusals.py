"""What the provider's refusals mean, without passing on what it says in them."""

import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    ProviderRefusedError,
    ProviderUnavailableError,
)

if TYPE_CHECKING:
    from stripe import StripeError

_SAFE_WORD: Final = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)
_NO_WORD: Final = "unknown"

_log = logging.getLogger(__name__)


def refusal(error: "StripeError") -> DomainError:
    """What an error means to our callers; the log says enough to find the request at the provider."""
    status = error.http_status or 0
    kind, code, parameter = _words(error, "type"), _words(error, "code"), _words(error, "param")
    request_id = _word(error.request_id)
    _log.warning(
        "the payment provider did not do as asked: %s, status %d, type %s, code %s, parameter %s, request %s",
        type(error.__cause__ or error).__name__, status, kind, code, parameter, request_id,
    )  # fmt: skip
    if code == "idempotency_key_in_use":
        return IdempotencyInFlightError("A request with this Idempotency-Key is still being carried out.")
    if kind == "idempotency_error":
        return IdempotencyMismatchError("This Idempotency-Key was used with another request body.")
    if not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR or _is_passing(status, code):
        return ProviderUnavailableError("The payment provider is out of reach. Try again shortly.")
    if status == HTTPStatus.UNAUTHORIZED:
        return ProviderRefusedError(
            "The payment provider does not accept this service's API key (PROVIDER_SECRET_KEY).",
            of_key=True,
        )
    if status == HTTPStatus.FORBIDDEN:
        return ProviderRefusedError(
            "The payment provider does not let this service's API key (PROVIDER_SECRET_KEY) do this: it lacks a "
            f"permission ({code}, request {request_id}).",
            of_key=True,
        )
    return ProviderRefusedError(
        f"The payment provider refused the request (status {status}, {code}, request {request_id})."
    )


def unusable(why: str, request_id: str | None = None) -> ProviderUnavailableError:
    """The error for an answer that is not what it must be; ``why``, which holds nothing of it, goes to the log."""
    _log.warning("the payment provider's answer cannot be used: %s, request %s", why, _word(request_id))
    return ProviderUnavailableError("The payment provider's answer cannot be used.")


def is_unknown_customer(error: "StripeError") -> bool:
    """Whether the provider says that it has no such customer."""
    return _words(error, "code") == "resource_missing" and _words(error, "param") in ("customer", _NO_WORD)


def _is_passing(status: int, code: str) -> bool:
    """Whether the same request may well succeed later: rate limits, old and new, and locks."""
    return status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.CONFLICT) or code == "rate_limit"


def _words(error: "StripeError", name: str) -> str:
    body = error.json_body
    details = body.get("error") if isinstance(body, dict) else None
    return _word(details.get(name) if isinstance(details, dict) else None)


def _word(value: object) -> str:
    """The value if it is a plain word, so that no message and no address gets into logs and answers."""
    return value if isinstance(value, str) and _SAFE_WORD.fullmatch(value) else _NO_WORD
