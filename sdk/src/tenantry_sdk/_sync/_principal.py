# Generated from _async/_principal.py by sdk/make_sync.py: edit that file.
"""The caller of a request, who consumes metered features by the credential of that request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantry_sdk._entitlements import (
    NOT_COUNTED,
    checked_choice,
    consumption,
    denial,
    is_unavailable,
)
from tenantry_sdk._models import CheckedCaller, Consumption
from tenantry_sdk._options import CallOptions, with_headers
from tenantry_sdk._request import Call
from tenantry_sdk._response import Response
from tenantry_sdk._sync._engine import Engine
from tenantry_sdk._verify import principal_of, sent_by, unavailable
from tenantry_sdk.errors import ConfigurationError, TenantryError
from tenantry_sdk.types import OnUnavailable

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CHECKED: Final = "_checked"
"""The attribute with the client and the check that accepted the caller."""


class Principal(CheckedCaller, frozen=True, kw_only=True):
    """The caller of a request that `verify` accepted.

    Characters of ``id`` and of plans outside visible ASCII are ``?``.
    """

    def consume(
        self,
        feature: str,
        amount: int = 1,
        *,
        idempotency_key: str | None = None,
        on_unavailable: OnUnavailable = "raise",
        **options: Unpack[CallOptions],
    ) -> Consumption:
        """Count ``amount`` of a metered feature for the caller's tenant, as `entitlements.consume`
        does, with the credential of the request that `verify` accepted.

        Raises its errors, those of `verify` for a credential that has become invalid, and
        `ConfigurationError` for a principal that `verify` did not return, such as an unpickled one.
        """
        checked: tuple[Engine, Call] | None = vars(self).get(_CHECKED)
        if checked is None:
            raise ConfigurationError("consume() needs a principal that verify() returned.")
        engine, check = checked
        call = sent_by(self, check, consumption(feature, amount, idempotency_key))
        sent = with_headers(call, options)
        return consume(engine.with_options(options), sent, on_unavailable)


def consume(engine: Engine, call: Call, on_unavailable: OnUnavailable) -> Consumption:
    """Send a request that consumes. Raises, allows or denies if the service is unavailable."""
    choice = checked_choice(on_unavailable)
    try:
        return (engine.send(call)).parse(Consumption)
    except TenantryError as error:
        if choice == "raise" or not is_unavailable(error):
            if call.is_by_caller and is_unavailable(error):
                raise unavailable(error) from error
            raise
        if choice == "deny":
            raise denial(error) from error
    return NOT_COUNTED


def accepted_by(engine: Engine, check: Call, response: Response) -> Principal:
    """Return the caller that a check accepted, as `principal_of`."""
    principal = principal_of(response, Principal)
    vars(principal)[_CHECKED] = engine, check
    return principal
