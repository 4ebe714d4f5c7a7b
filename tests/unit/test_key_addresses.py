"""Which addresses a key allows, and where a request comes from beyond doubt."""

from collections.abc import Mapping

import pytest

from tenantry.auth.credentials import CredentialFinder, Sender
from tenantry.domain.errors import AddressNotAllowedError
from tenantry.domain.key_addresses import address_faults, covers, normalized
from tests.support.cases import cases

PROXY = "10.0.0.1"
FINDER = CredentialFinder(trusted_proxies=("10.0.0.0/8", "fd00::/8"))


@cases(
    ("given", "stored"),
    [
        (["192.0.2.7"], ("192.0.2.7",)),
        (["192.0.2.7/32", "192.0.2.7"], ("192.0.2.7",)),
        (["192.0.2.0/24"], ("192.0.2.0/24",)),
        (["2001:DB8::0/32", "2001:db8::7/128"], ("2001:db8::/32", "2001:db8::7")),
        (["::ffff:192.0.2.7"], ("192.0.2.7",)),
        (["::ffff:192.0.2.0/120"], ("192.0.2.0/24",)),
        (["0.0.0.0/0", "::/0"], ("0.0.0.0/0", "::/0")),
    ],
)
def test_addresses_are_stored_in_one_form(given: list[str], stored: tuple[str, ...]) -> None:
    assert list(address_faults(given)) == []
    assert normalized(given) == stored


@cases(
    ("given", "fault"),
    [
        ("192.0.2.7/24", "192.0.2.7/24 has bits behind the network's: write 192.0.2.0/24"),
        ("2001:db8::1/32", "2001:db8::1/32 has bits behind the network's: write 2001:db8::/32"),
        ("fe80::1%eth0", "fe80::1%eth0 has a zone, which means something on one machine only"),
        ("192.0.2.300", "192.0.2.300 is no IPv4 or IPv6 address or network"),
        ("192.0.2.0/33", "192.0.2.0/33 is no IPv4 or IPv6 address or network"),
        ("example.com", "example.com is no IPv4 or IPv6 address or network"),
        ("", " is no IPv4 or IPv6 address or network"),
    ],
)
def test_faulty_address_is_explained(given: str, fault: str) -> None:
    assert list(address_faults(["192.0.2.1", given])) == [fault]


def test_more_than_32_addresses_are_refused() -> None:
    assert list(address_faults(["192.0.2.7"] * 33)) == ["must have at most 32 addresses"]


def test_proxies_may_have_bits_behind_the_network() -> None:
    finder = CredentialFinder(trusted_proxies=("10.0.0.5/8",))
    sender = Sender({b"x-forwarded-for": b"192.0.2.7"}.get, PROXY)
    finder.check_address(("192.0.2.7",), sender)


def is_accepted(
    allowed: tuple[str, ...], sender: str | None, *, resolved: bool = False, **headers: str
) -> bool:
    values: Mapping[bytes, bytes] = {
        name.replace("_", "-").encode(): value.encode() for name, value in headers.items()
    }
    try:
        FINDER.check_address(allowed, Sender(values.get, sender, is_forwarded=resolved))
    except AddressNotAllowedError:
        return False
    return True


@cases(
    ("sender", "accepted"),
    [
        ("192.0.2.7", True),
        ("::ffff:192.0.2.7", True),
        ("2001:db8::7", True),
        ("192.0.3.7", False),
        ("2001:db9::7", False),
        ("2001:db8::7%eth0", False),
        (None, False),
        ("", False),
        ("unix:", False),
        (PROXY, False),
    ],
)
def test_client_without_a_proxy(sender: str | None, accepted: bool) -> None:
    assert is_accepted(("192.0.2.0/24", "2001:db8::/32"), sender) is accepted
    assert is_accepted((), sender)


@cases(
    ("peer", "forwarded", "accepted"),
    [
        (PROXY, "192.0.2.7", True),
        (PROXY, "192.0.2.7:49152", True),
        (PROXY, "192.0.2.7, 10.1.2.3", True),
        (PROXY, "198.51.100.1, 192.0.2.7", True),
        ("fd00::1", "[2001:db8::7]:443", True),
        (PROXY, "2001:db8::7", True),
        (PROXY, "::ffff:192.0.2.7", True),
        # forged by a client outside the network
        (PROXY, "192.0.2.7, 198.51.100.1", False),
        # not usable
        (PROXY, "", False),
        (PROXY, "unknown", False),
        (PROXY, "192.0.2.7, unknown", False),
        (PROXY, "10.1.2.3", False),
        # of a peer that is no trusted proxy, even of an allowed one
        ("192.0.2.7", "192.0.2.8", False),
        ("198.51.100.1", "192.0.2.7", False),
        (None, "192.0.2.7", False),
    ],
)
def test_client_behind_a_proxy(peer: str | None, forwarded: str, accepted: bool) -> None:
    allowed = ("192.0.2.0/24", "2001:db8::/32")
    assert is_accepted(allowed, peer, x_forwarded_for=forwarded) is accepted


def test_address_that_the_server_took_from_a_proxy_counts_unless_it_is_one() -> None:
    everything = ("0.0.0.0/0",)
    assert is_accepted(everything, "192.0.2.7", resolved=True, x_forwarded_for="192.0.2.7")
    assert not is_accepted(everything, PROXY, resolved=True, x_forwarded_for=PROXY)


@pytest.mark.parametrize(
    ("allowed", "others", "result"),
    [
        ((), (), True),
        ((), ("192.0.2.7",), True),
        (("192.0.2.0/24",), (), False),
        (("192.0.2.0/24",), ("192.0.2.0/25", "192.0.2.200"), True),
        (("192.0.2.0/24",), ("192.0.2.0/23",), False),
        (("192.0.2.0/24",), ("192.0.2.7", "2001:db8::7"), False),
        (("192.0.2.0/25", "192.0.2.128/25"), ("192.0.2.0/24",), False),
        (("::/0", "0.0.0.0/0"), ("192.0.2.0/24", "2001:db8::/32"), True),
    ],
)
def test_one_list_covers_another(
    allowed: tuple[str, ...], others: tuple[str, ...], result: bool
) -> None:
    assert covers(allowed, others) is result
