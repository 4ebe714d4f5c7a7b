"""Which IP addresses are public."""

from ipaddress import ip_address
from typing import Final

from tenantry.domain.public_addresses import is_private_literal, is_public
from tests.support.cases import cases


@cases(
    "address",
    [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "168.63.129.15",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2001:200::1",
        "2003::1",
        "2606:4700:4700::1111",
        "2a00:1450:4001:82a::200e",
    ],
)
def test_public_address(address: str) -> None:
    assert is_public(ip_address(address))


NOT_PUBLIC: Final = (
    "0.0.0.0",  # unspecified
    "0.1.2.3",
    "10.0.0.1",  # private
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",  # carriers
    "100.100.100.200",  # Alibaba Cloud's metadata
    "127.0.0.1",  # loopback
    "127.255.255.254",
    "168.63.129.16",  # Azure's platform
    "169.254.0.1",  # link-local
    "169.254.169.254",  # the metadata of AWS, Google Cloud and Azure
    "169.254.170.2",  # the credentials of an ECS task
    "192.0.0.192",  # Oracle Cloud's metadata
    "192.0.2.1",  # documentation
    "198.51.100.1",
    "203.0.113.1",
    "192.88.99.1",  # 6to4 relays
    "198.18.0.1",  # benchmarks
    "198.19.255.255",
    "224.0.0.1",  # multicast
    "239.255.255.255",
    "240.0.0.1",  # reserved
    "255.255.255.255",  # broadcast
    "::",  # unspecified
    "::1",  # loopback
    "::127.0.0.1",  # IPv4-compatible
    "::93.184.215.14",
    "::ffff:127.0.0.1",  # IPv4-mapped
    "::ffff:93.184.215.14",
    "::ffff:0:127.0.0.1",  # IPv4-translated
    "64:ff9b::7f00:1",  # NAT64
    "64:ff9b:1::7f00:1",  # local NAT64
    "100::1",  # discarded
    "2001::1",  # Teredo
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",  # benchmarks
    "2001:10::1",  # ORCHID
    "2001:20::1",
    "2001:db8::1",  # documentation
    "3fff::1",
    "2002:7f00:1::",  # 6to4
    "2002:5db8:d70e::1",
    "5f00::1",  # segment routing
    "fc00::1",  # unique local
    "fd00:ec2::254",  # AWS's metadata
    "fd20:ce::254",  # Google Cloud's metadata
    "fe80::1",  # link-local
    "fe80::1%eth0",
    "fec0::1",  # site-local
    "ff02::1",  # multicast
    "ffff::1",
)


def test_address_that_is_not_public() -> None:
    for address in NOT_PUBLIC:
        assert not is_public(ip_address(address)), address


@cases(
    ("host", "is_private"),
    [
        ("10.0.0.1", True),
        ("::1", True),
        ("1.1.1.1", False),
        ("example.com", False),
        ("2130706433", False),  # a resolver decides
        ("", False),
    ],
)
def test_literal(host: str, is_private: bool) -> None:
    assert is_private_literal(host) is is_private
