"""Which IP addresses are public: those of networks that are not the operator's own."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

# The IANA special-purpose address registries. `ipaddress.is_global` differs between versions of
# Python.
_SPECIAL_IPV4: Final = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carriers (RFC 6598), and Alibaba Cloud's metadata
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure's platform, in a public network
            "169.254.0.0/16",  # link-local, and the metadata of most clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments, and Oracle Cloud's metadata
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
# All public addresses are in it. Loopback, unique local, link-local, multicast, NAT64, and the
# forms that contain an IPv4 address (::/96, ::ffff:0:0/96) are outside.
_GLOBAL_IPV6: Final = ip_network("2000::/3")
_SPECIAL_IPV6: Final = tuple(
    map(
        ip_network,
        (
            "2001::/23",  # protocol assignments, with Teredo and ORCHID
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: contains an IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the public internet.

    Private, loopback, link-local, multicast, unspecified and reserved addresses are not, nor are
    those of a cloud's metadata, nor IPv6 addresses that contain an IPv4 address.
    """
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_IPV4)
    return address in _GLOBAL_IPV6 and not any(address in network for network in _SPECIAL_IPV6)


def is_private_literal(host: str) -> bool:
    """Whether a host is written as an IP address that is not public. A name is not."""
    try:
        return not is_public(ip_address(host))
    except ValueError:
        return False
