"""How long the service waits for what it depends on."""

import msgspec


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long the service waits for PostgreSQL and for other servers, in seconds.

    Production uses the defaults: together they keep the promise that every request is answered within 5 s (CONTRACT
    section 4). Tests hand in shorter ones.
    """

    request: float = 4.8
    """For an answer, from the moment at which the whole request is there; then 503."""
    batch: float = 4.5
    """For a batch of queries, and for each request in it."""
    batch_start: float = 2.0
    """For a batch to begin, for each request that waits for it."""
    rate_limits: float = 2.0
    """For the database to grant requests against a plan's limits."""
    connect: float = 3.0
    """For a connection to PostgreSQL, new or from the pool. The driver itself gives up after 2 s at the earliest."""
    statement: float = 4.0
    """For one SQL statement: PostgreSQL's ``statement_timeout``."""
    identity_provider: float = 3.0
    """For a document of the identity provider."""
    token_endpoint: float = 4.0
    """For the identity provider's answer to an authorization code."""
    payment_provider: float = 10.0
    """For one attempt at a call of the payment provider's API."""


DEFAULT_TIMEOUTS = Timeouts()
