"""How long commands wait."""

from typing import NamedTuple

import click

from tenantry_sdk._retry import BACKOFF, Backoff


class Waits(NamedTuple):
    """How long a command waits, in seconds. Tests hand in shorter ones, as click's ``obj``."""

    backoff: Backoff = BACKOFF
    """Between the attempts of a call of the service."""
    provider: float = 10.0
    """For an answer of the identity provider."""
    poll: float = 1.0
    """At least, from one question to the next whether the user has entered the code."""


def waits() -> Waits:
    """How long the command that runs now waits."""
    return click.get_current_context().find_object(Waits) or Waits()
