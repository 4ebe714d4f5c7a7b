"""The addresses from which an API key may be used."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Annotated, Final

import msgspec

from tenantry.domain.errors import ValidationError

MAX_ADDRESSES: Final = 32
_LONGEST_ADDRESS: Final = 64
_MAPPED_BITS: Final = 96
"""The length of the prefix ``::ffff:0:0/96`` of IPv4 addresses that are mapped to IPv6."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
AllowedAddresses = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=_LONGEST_ADDRESS)], ...],
    msgspec.Meta(
        max_length=MAX_ADDRESSES,
        description="The addresses and networks (IPv4 or IPv6) from which the key may be used; null or empty for any.",
        examples=[["192.0.2.0/24", "2001:db8::7"]],
    ),
]
"""The allowed addresses in a request."""


def address_faults(addresses: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with a list of allowed addresses."""
    if len(addresses) > MAX_ADDRESSES:
        yield f"must have at most {MAX_ADDRESSES} addresses"
        return
    for text in addresses:
        try:
            read_network(text)
        except ValueError as error:
            yield str(error)


def _overlaps(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)


def read_network(text: str) -> Network:
    """Read an address, or a network as ``192.0.2.0/24``; an IPv4 one that is mapped to IPv6 is the
    IPv4 one. Raises `ValueError` with the fault.
    """
    if "%" in text:
        raise ValueError(f"{text} has a zone, which means something on one machine only")
    try:
        network = ip_network(text)
    except ValueError:
        raise ValueError(_fault_of(text)) from None
    return _unmapped(network)


def _unmapped(network: Network) -> Network:
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def read_proxy(text: str) -> Network:
    """Read an address or network of trusted proxies as the settings have it: with or without bits
    behind the network's; a mapped one is the IPv4 one. Raises `ValueError`.
    """
    return _unmapped(ip_network(text, strict=False))


def _fault_of(text: str) -> str:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return f"{text} is no IPv4 or IPv6 address or network"
    return f"{text} has bits behind the network's: write {network}"


def normalized(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return valid addresses in one form, each once: a single one without the length of its
    prefix.
    """
    networks = map(read_network, addresses)
    return tuple(dict.fromkeys(map(_text_of, networks)))


def _text_of(network: Network) -> str:
    is_single = network.prefixlen == network.max_prefixlen
    return str(network.network_address if is_single else network)


def read_address(text: str | None) -> Address | None:
    """Return a client's address; None for a text that is none, or that has a zone. An IPv4 address
    that is mapped to IPv6 is the IPv4 one.
    """
    if text is None or "%" in text:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    """Whether one of the networks has the address."""
    return any(address in network for network in networks)


def is_allowed(allowed: Sequence[str], address: Address | None) -> bool:
    """Whether a key with these allowed addresses may be used from an address. An unknown one is
    allowed only where every address is.
    """
    if not allowed:
        return True
    return address is not None and is_within(address, _networks(tuple(allowed)))


def covers(allowed: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a key with ``allowed`` addresses may be used from all ``others``; an empty list is
    every address.
    """
    if not allowed:
        return True
    networks = _networks(tuple(allowed))
    wanted = _networks(tuple(others))
    return bool(wanted) and all(_has(networks, network) for network in wanted)


def _has(networks: Iterable[Network], wanted: Network) -> bool:
    same_version = (network for network in networks if network.version == wanted.version)
    return any(wanted.subnet_of(network) for network in same_version)  # type: ignore[arg-type]


@lru_cache(1024)
def _networks(addresses: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(map(read_network, addresses))


class TrustedProxies:
    """The networks of the proxies whose ``X-Forwarded-For`` counts."""

    __slots__ = ("_networks",)

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Raises `ValueError` for what is no address or network."""
        self._networks = tuple(map(read_proxy, texts))

    def have(self, address: Address) -> bool:
        return is_within(address, self._networks)

    def client_of(self, header: str) -> Address | None:
        """Return the client of a trusted proxy by its ``X-Forwarded-For``: the last address that is
        no trusted proxy's. Return None without one, and where a text before it is no address.
        """
        for text in reversed(header.split(",")):
            address = read_address(_without_port(text.strip()))
            if address is None or not self.have(address):
                return address
        return None

    def check_none_in(self, addresses: Iterable[str]) -> None:
        """Raise `ValidationError` for valid allowed addresses that contain a trusted proxy, from
        which no client comes.
        """
        for text in addresses if self._networks else ():
            network = read_network(text)
            found = next((proxy for proxy in self._networks if _overlaps(network, proxy)), None)
            if found is not None:
                fault = f"{text} contains the trusted proxy {_text_of(found)}: give the addresses of clients"
                raise ValidationError(("allowedAddresses", fault))


NO_PROXIES: Final = TrustedProxies()


def _without_port(text: str) -> str:
    """Return the address of ``address``, ``address:port`` (IPv4) or ``[address]:port``."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
