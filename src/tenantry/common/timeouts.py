"""How long the service waits for what it depends on."""

from typing import Final

import msgspec


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long the service waits for PostgreSQL, the identity provider and the payment provider, in seconds.

    Production uses the defaults. With them, a request that needs a database that is away is answered within 5 s
    (CONTRACT section 4). Tests pass shorter values in the same order. The limits of SMTP, of a replay and of an idle
    transaction are constants where they are used.
    """

    request: float = 4.8
    """A whole request, from the end of its body to the answer; then the answer is 503."""
    batch: float = 4.5
    """One batch of queries, and each request in it."""
    batch_start: float = 2.0
    """How long a request waits for its batch to start."""
    rate_limits: float = 2.0
    """The query that reserves requests of a plan's rate limit."""
    connect: float = 3.0
    """A connection to PostgreSQL, new or from the pool. The driver itself gives up after 2 s at the earliest."""
    statement: float = 4.0
    """One SQL statement: PostgreSQL's ``statement_timeout``."""
    identity_provider: float = 3.0
    """Fetching the identity provider's metadata and keys, or an answer of its userinfo endpoint."""
    token_endpoint: float = 4.0
    """The identity provider's answer to an authorization code."""
    payment_provider: float = 10.0
    """One attempt at a call of the payment provider's API."""


DEFAULT_TIMEOUTS: Final = Timeouts()
