"""HMACs of people whose data was erased. They say whether a user or an address is one of them, and
nothing else of the person.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from tenantry.domain.api_keys import Pepper
from tenantry.domain.members import User

ALIAS: Final = "erased"
"""What the names of erased people begin with."""
_OF_USER: Final = b"erased user\0"  # no secret of a key has this byte
_OF_ADDRESS: Final = b"erased address\0"


def user_hmac(user: User, pepper: Pepper) -> str:
    return pepper.digest(_OF_USER + msgspec.json.encode(user)).hex()


def address_hmac(address: str, pepper: Pepper) -> str:
    return pepper.digest(_OF_ADDRESS + address.lower().encode()).hex()


def rejected_alias(user: User, pepper: Pepper) -> str:
    """Return what stands for the subject of a member who was removed before their data was
    erased.
    """
    return f"{ALIAS}_{pepper.id}_{user_hmac(user, pepper)}"


def rejected_aliases(user: User, peppers: Iterable[Pepper]) -> list[str]:
    """Return the `rejected_alias` of a user under each pepper."""
    return [rejected_alias(user, pepper) for pepper in peppers]
