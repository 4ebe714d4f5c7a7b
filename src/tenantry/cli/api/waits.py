"""How long commands wait."""

from typing import NamedTuple

import click

from tenantry_sdk._retry import BACKOFF, Backoff


class Waits(NamedTuple):
    """How long a command waits, in seconds. Tests pass shorter values, as click's ``obj``."""

    backoff: Backoff = BACKOFF
    """Between the attempts of a call of the service."""
    provider: float = 10.0
    """For an answer of the identity provider."""
    poll: float = 1.0
    """Minimum polling interval of the device flow (RFC 8628)."""


def waits() -> Waits:
    """Return the waits of the command that runs now."""
    return click.get_current_context().find_object(Waits) or Waits()
