"""The callers of an application, who consume metered features of their tenants."""

import asyncio
import hashlib
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import msgspec

from tenantry.auth.credentials import CredentialFinder
from tenantry.db.idempotency_store import Claim
from tenantry.domain.entitlements import MOST_AT_ONCE, Consumed
from tenantry.domain.permissions import RequestPrincipal

_KEY: Final = re.compile(r"[!-~]{1,255}")

logger = logging.getLogger(__name__)


class Use(msgspec.Struct, frozen=True):
    """What a caller consumes."""

    feature: str
    amount: int
    idempotency_key: str | None

    def __post_init__(self) -> None:
        if type(self.amount) is not int or not 1 <= self.amount <= MOST_AT_ONCE:
            raise ValueError(f"amount must be 1 to {MOST_AT_ONCE:,}, not {self.amount}")
        if self.idempotency_key is not None and not _KEY.fullmatch(self.idempotency_key):
            raise ValueError("idempotency_key must be 1 to 255 visible ASCII characters")

    def claim(self, finder: CredentialFinder) -> Claim | None:
        """Return the claim of the use. It is that of the same request over HTTP, so that both
        together count once.
        """
        if self.idempotency_key is None:
            return None
        body = msgspec.json.encode({"amount": self.amount})
        key = finder.without_secret(self.idempotency_key)
        return Claim("", "", key, hashlib.sha256(body).digest())


class UsedKey(msgspec.Struct, frozen=True):
    """A use to give back."""

    feature: str
    idempotency_key: str

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.idempotency_key):
            raise ValueError("idempotency_key must be 1 to 255 visible ASCII characters")


def _as_stored(principal: RequestPrincipal) -> tuple[object, ...]:
    names = RequestPrincipal.__struct_fields__
    return RequestPrincipal, tuple(getattr(principal, name) for name in names)


class AsgiPrincipal(RequestPrincipal, frozen=True, kw_only=True, rename="camel"):
    """The caller of a request to an ASGI application."""

    consumer: Callable[[RequestPrincipal, Use], Awaitable[Consumed]]
    """Counts a use."""
    returner: Callable[[RequestPrincipal, UsedKey], Awaitable[Consumed]]
    """Gives a use back."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy as the caller alone, who cannot consume in another process."""
        return _as_stored(self)

    async def consume(
        self, feature: str, amount: int = 1, *, idempotency_key: str | None = None
    ) -> Consumed:
        """Count ``amount`` (1 to 1,000,000,000) of a metered feature for the caller's tenant, all
        of it or nothing.

        For 24 hours an ``idempotency_key`` counts once for the tenant and the feature, whoever
        sends it, over HTTP too. Raises the service's refusals (`DomainError`): that the feature is
        unknown, not metered or not granted, that less is left, that the credential has become
        invalid, or `AuthUnavailableError`, after which the use may be counted. Raises `ValueError`
        for an invalid amount or key. The limit is that of the access at the request: do not keep
        the caller longer.
        """
        return await self.consumer(self, Use(feature, amount, idempotency_key))

    async def give_back(self, feature: str, *, idempotency_key: str) -> Consumed:
        """Give back what the caller's tenant consumed with a key, whoever did, within 24 hours.
        Repeated, it changes nothing, and returns the same.

        The key is used up: `consume` raises `ConsumptionGivenBackError` for it. Raises
        `UnknownConsumptionError` and `AuthUnavailableError`, and `ValueError` for an invalid key.
        """
        return await self.returner(self, UsedKey(feature, idempotency_key))

    @asynccontextmanager
    async def consuming(
        self, feature: str, amount: int = 1, *, idempotency_key: str | None = None
    ) -> AsyncIterator[Consumed]:
        """Count ``amount`` for the block, as `consume`, and give it back if the block raises.

        If giving back fails, the block's error is raised, with a note; a warning is logged.
        Without an ``idempotency_key`` a random one is used.
        """
        key = idempotency_key or uuid.uuid4().hex
        consumed = await self.consume(feature, amount, idempotency_key=key)
        try:
            yield consumed
        except BaseException as error:
            # goes on if the caller is canceled again
            returning = asyncio.ensure_future(self.give_back(feature, idempotency_key=key))
            try:
                await asyncio.shield(returning)
            except Exception as failure:  # noqa: BLE001  # the block's error matters more
                _note_failure(error, feature, failure)
            raise


class WsgiPrincipal(RequestPrincipal, frozen=True, kw_only=True, rename="camel"):
    """The caller of a request to an application whose threads have no event loop."""

    consumer: Callable[[RequestPrincipal, Use], Consumed]
    """Counts a use."""
    returner: Callable[[RequestPrincipal, UsedKey], Consumed]
    """Gives a use back."""

    def __reduce__(self) -> tuple[object, ...]:
        """As `AsgiPrincipal`."""
        return _as_stored(self)

    def consume(
        self, feature: str, amount: int = 1, *, idempotency_key: str | None = None
    ) -> Consumed:
        """Count ``amount`` of a metered feature for the caller's tenant, as
        `AsgiPrincipal.consume`.
        """
        return self.consumer(self, Use(feature, amount, idempotency_key))

    def give_back(self, feature: str, *, idempotency_key: str) -> Consumed:
        """Give back what the caller's tenant consumed with a key, as `AsgiPrincipal.give_back`."""
        return self.returner(self, UsedKey(feature, idempotency_key))

    @contextmanager
    def consuming(
        self, feature: str, amount: int = 1, *, idempotency_key: str | None = None
    ) -> Iterator[Consumed]:
        """Count ``amount`` for the block, as `AsgiPrincipal.consuming`."""
        key = idempotency_key or uuid.uuid4().hex
        consumed = self.consume(feature, amount, idempotency_key=key)
        try:
            yield consumed
        except BaseException as error:
            try:
                self.give_back(feature, idempotency_key=key)
            except Exception as failure:  # noqa: BLE001  # the block's error matters more
                _note_failure(error, feature, failure)
            raise


def _note_failure(error: BaseException, feature: str, failure: Exception) -> None:
    text = f"The use of {feature} could not be given back: {failure}"
    error.add_note(text)
    logger.warning(text)
