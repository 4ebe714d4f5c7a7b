"""Published keys that are known to be weak: anybody can forge their signatures, or each check of one is expensive."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from joserfc.util import base64_to_int, urlsafe_b64decode

MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192

# Nemec et al., "The Return of Coppersmith's Attack" (CCS 2017, CVE-2017-15361), section 4: primes of affected keys are
# k * M + 65537^a mod M, where M is a product of small primes. So modulo each of these the modulus is a power of 65537.
# A random modulus passes for one with a probability of about 2^-27.
_ROCA_PRIMES: Final = (
    3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109,
    113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
)  # fmt: skip
_ROCA_GENERATOR: Final = 65537

_P25519: Final = 2**255 - 19
_P448: Final = 2**448 - 2**224 - 1
_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
"""The y-coordinate of a point of order 8 on Curve25519's Edwards form; the other one is its negative."""
# By curve: how many bits hold y, below the sign of x (RFC 8032 sections 5.1.3 and 5.2.3); the field's prime; and the
# y-coordinates of all points whose order divides the cofactor. The signature of such a key proves nothing.
_SMALL_ORDER: Final[Mapping[object, tuple[int, int, frozenset[int]]]] = {
    "Ed25519": (255, _P25519, frozenset({0, 1, _P25519 - 1, _ORDER_8, _P25519 - _ORDER_8})),
    "Ed448": (455, _P448, frozenset({0, 1, _P448 - 1})),
}


def weakness(entry: Mapping[str, Any]) -> str | None:
    """Why a JSON Web Key is too weak, in words; None where it is not, or is of a type that has no known weakness.

    Raises what decoding a malformed entry raises: `ValueError`, `TypeError` or `LookupError`.
    """
    match entry.get("kty"):
        case "RSA":
            return _weakness_of_modulus(base64_to_int(entry["n"]))
        case "OKP" if entry.get("crv") in _SMALL_ORDER:
            bits, prime, small = _SMALL_ORDER[entry["crv"]]
            y = int.from_bytes(urlsafe_b64decode(bytes(entry["x"], "ascii")), "little") & ((1 << bits) - 1)
            return "its public key is a point of small order" if y % prime in small else None
    return None


def _weakness_of_modulus(modulus: int) -> str | None:
    bits = modulus.bit_length()
    if bits < MIN_RSA_BITS:
        return f"RSA of {bits} bits, fewer than {MIN_RSA_BITS}"
    if bits > MAX_RSA_BITS:
        return f"RSA of {bits} bits, more than {MAX_RSA_BITS}"
    if all(modulus % prime in powers for prime, powers in _roca_fingerprint()):
        return "its RSA modulus can be factored (ROCA, CVE-2017-15361)"
    return None


@cache
def _roca_fingerprint() -> tuple[tuple[int, frozenset[int]], ...]:
    """Each small prime, and the powers of 65537 modulo it."""
    return tuple(
        (prime, frozenset(pow(_ROCA_GENERATOR, exponent, prime) for exponent in range(prime - 1)))
        for prime in _ROCA_PRIMES
    )
