"""Senders of requests, for authentication without a server."""

from tenantry.auth.credentials import Sender


def bearer(credential: str | None, address: str | None = None) -> Sender:
    """A request with this credential alone, from this address."""
    return Sender({b"authorization": f"Bearer {credential}".encode()}.get, address)
