"""HTTP names that several packages share."""

from ipaddress import ip_address
from typing import Final

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""The methods that metrics, logs and traces name; all others are "other"."""


def is_loopback(host: str) -> bool:
    """Whether a host (``localhost`` or an IP address) is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
