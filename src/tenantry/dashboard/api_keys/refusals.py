"""What the service refuses about keys, in words and with the way out."""

from typing import Final, NamedTuple

from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    KeyLimitReachedError,
    KeyNotActiveError,
    LastOwnerError,
    ModeMismatchError,
    ScopeEscalationError,
)


class Told(NamedTuple):
    """A refusal's heading, and what can be done."""

    title: str
    way_out: str


_TOLD: Final[dict[type[DomainError], Told]] = {
    ScopeEscalationError: Told(
        "You may not do this", "Nobody gives a key more than they hold themselves. Ask an owner of the organization."
    ),
    ModeMismatchError: Told("You may not do this", "Ask somebody who acts in live mode."),
    KeyLimitReachedError: Told(
        "No more keys on this plan", "Revoke a key that nothing uses any more, or change to a plan that allows more."
    ),
    KeyNotActiveError: Told("This key cannot be changed", "The key's page says how it stands."),
    LastOwnerError: Told(
        "This is the last OWNER key",
        "Create another OWNER key, rotate this one, or make a member the owner first. Without any of these, nobody "
        "could make an OWNER key again but the operator of this service.",
    ),
    IdempotencyInFlightError: Told(
        "This was sent twice", "The first time is still being carried out. Look at the list of keys in a moment."
    ),
}
REFUSALS: Final = tuple(_TOLD)
_DETAILS_OF_THE_API: Final = (LastOwnerError, IdempotencyInFlightError)


def in_words(error: DomainError) -> str:
    """One of `REFUSALS`, as a paragraph."""
    way_out = _TOLD[type(error)].way_out
    # what these say themselves is about parameters and headers
    return way_out if isinstance(error, _DETAILS_OF_THE_API) else f"{error.detail} {way_out}"


def title_of(error: DomainError) -> str:
    """The heading over one of `REFUSALS`."""
    return _TOLD[type(error)].title
