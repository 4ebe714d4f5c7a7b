"""Mail addresses: whether two of them name one mailbox, and the domain that mail is sent to."""

import re
import unicodedata
from typing import Final

import idna

from tenantry.domain.names import has_refused_characters

_LONGEST_LOCAL: Final = 64
_DOMAIN: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?")


def comparable_address(email: str) -> str | None:
    """Return the form by which addresses are compared; None for what is no address.

    The domain is mapped as browsers map it (UTS 46, IDNA 2008). The local part is composed (NFC)
    and in lower case. Dots and ``+tag`` stay, since they name other mailboxes at many providers.
    Unicode's full case folding would make one mailbox of ``ß`` and ``ss``.
    """
    local, _, domain = email.strip().rpartition("@")
    encoded = ascii_domain(domain)
    if not local or encoded is None or has_refused_characters(email):
        return None
    lower = unicodedata.normalize("NFC", local).lower()
    return f"{unicodedata.normalize('NFC', lower)}@{encoded.removesuffix('.')}"


def spellings(email: str) -> list[str]:
    """Return an address in lower case, as it is and in the forms in which others write it: the
    local part composed or decomposed, the domain as DNS has it or in letters.

    For a search among addresses that are stored as they came.
    """
    comparable = comparable_address(email)
    if comparable is None:
        return [email.lower()]
    local, _, domain = comparable.rpartition("@")
    domains = {domain, *_normal_forms(_in_letters(domain))}
    others = {f"{one}@{other}" for one in _normal_forms(local) for other in domains}
    return sorted({email.lower(), *others})


def _normal_forms(text: str) -> set[str]:
    """Return a text with its accents composed, and decomposed."""
    return {unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)}


def _in_letters(domain: str) -> str:
    """Return a domain of A-labels in the letters that they stand for."""
    try:
        return idna.decode(domain)
    except idna.IDNAError:
        return domain


def is_deliverable(email: str) -> bool:
    """Whether mail can be sent to an address, by its form (RFC 5321, sections 4.1.2 and 4.5.3.1).

    Nothing in it is invisible, and no label of the domain is empty or too long. An underscore
    occurs in domains of some organizations.
    """
    local, _, domain = email.rpartition("@")
    encoded = ascii_domain(domain)
    is_domain = encoded is not None and _DOMAIN.fullmatch(encoded) is not None
    return is_domain and email.isprintable() and len(local.encode()) <= _LONGEST_LOCAL


def ascii_domain(domain: str) -> str | None:
    """Return a domain as DNS has it (A-labels), in lower case; None for what is no domain."""
    if domain.isascii():
        return domain.lower() or None
    try:
        return idna.encode(domain, uts46=True).decode()
    except idna.IDNAError:
        return None
