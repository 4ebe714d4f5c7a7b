"""HTTP names, hosts and dates that several packages share."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Final

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""The methods that metrics, logs and traces name; all others are "other"."""
_LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # not bound here
"""The address to ask, by the address of a service that listens on all of this machine."""


def is_loopback(host: str) -> bool:
    """Whether a host (``localhost`` or an IP address) is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def origin_at(host: str, port: int | str) -> str:
    """Return the origin of a service at a host name, or an IPv4 or IPv6 address."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def local_origin(host: str, port: int | str) -> str:
    """Return the origin at which this machine reaches a service that listens on ``host``."""
    return origin_at(_LOOPBACK_OF.get(host, host), port)


def parse_http_date(text: str) -> datetime | None:
    """Parse an HTTP date (RFC 9110 section 5.6.7); None for a malformed one."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # the old form names no zone and means UTC
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
