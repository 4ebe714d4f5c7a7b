"""Erasing a person: the names that take the place of theirs, and what stays to find them again.

A removed member stays rejected: the record of the membership has an HMAC of issuer and subject in
place of the subject. HMACs of the person in the audit trail let a restored backup be erased again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.domain.api_keys import Pepper
from tenantry.domain.erased_ids import address_hmac, user_hmac
from tenantry.domain.erasure_patterns import address_pattern, any_of, id_pattern, loose_pattern
from tenantry.domain.mail_addresses import spellings
from tenantry.domain.members import User

_HOST: Final = "erased.invalid"


class Person(msgspec.Struct, frozen=True):
    """A person: the users of identity providers, and the addresses, that are theirs.

    ``rejected`` are the memberships of which the person was removed before the erasure.
    """

    users: tuple[User, ...]
    addresses: tuple[str, ...]
    rejected: tuple[str, ...] = ()

    @property
    def subjects(self) -> list[str]:
        """The ids of the users, each once."""
        return list(dict.fromkeys(user.subject for user in self.users))

    @property
    def spelled_addresses(self) -> list[str]:
        """The addresses in lower case, in all their spellings."""
        return list(dict.fromkeys(text for each in self.addresses for text in spellings(each)))

    @property
    def loose_pattern(self) -> str:
        """What finds the addresses and ids, also inside longer ones."""
        return any_of(map(loose_pattern, (*self.spelled_addresses, *self.subjects)))

    def may_be_in(self, text: str, loose: re.Pattern[str]) -> bool:
        """Whether a text, or bytes as Latin-1, may have the person; ``loose`` is the
        `loose_pattern`.
        """
        if "\\" in text or "%" in text:  # it may be escaped or encoded
            return loose.search(text) is not None
        lower = text.lower()
        values = (*self.spelled_addresses, *(subject.lower() for subject in self.subjects))
        return any(
            value in lower or value.encode().decode("latin-1").lower() in lower for value in values
        )


class Replacements(NamedTuple):
    """What is looked for, and what takes its place: `patterns` in texts, and whole user ids.
    ``loose`` finds all of that in texts and more, but far faster.
    """

    patterns: list[str]
    loose: str
    replacements: list[str]
    subjects: list[str]
    aliases: list[str]

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of statements; ``any`` finds all of the patterns."""
        return {**self._asdict(), "any": any_of(self.patterns)}


class ErasedPerson(msgspec.Struct, frozen=True, rename="camel"):
    """A person in the audit trail: HMACs, and the memberships that ended with the erasure."""

    users: tuple[tuple[str, str], ...]
    """Issuers, which may be unknown and empty, with the HMAC of each and the subject."""
    addresses: tuple[str, ...]
    ended: tuple[str, ...]

    def finds_user(self, subject: str, peppers: Sequence[Pepper]) -> list[User]:
        """Return the users of the person who have this subject."""
        users = [User(issuer, subject) for issuer in dict.fromkeys(pair[0] for pair in self.users)]
        known = set(self.users)
        return [
            user
            for user in users
            if any((user.issuer, user_hmac(user, pepper)) in known for pepper in peppers)
        ]

    def finds_address(self, address: str, peppers: Sequence[Pepper]) -> bool:
        """Whether this is one of the person's addresses."""
        return any(address_hmac(address, pepper) in self.addresses for pepper in peppers)


def replacements_of(person: Person, alias: str) -> Replacements:
    """Return what takes the place of a person who is now called ``alias``."""
    addresses, subjects = person.spelled_addresses, person.subjects
    aliases = _numbered(alias, subjects)
    hosts = [f"{name}@{_HOST}" for name in _numbered(alias, addresses)]
    patterns = [*map(address_pattern, addresses), *map(id_pattern, subjects)]
    return Replacements(patterns, person.loose_pattern, [*hosts, *aliases], subjects, aliases)


def _numbered(alias: str, values: Iterable[str]) -> list[str]:
    """Return a name for each value: rows that differ in it alone stay different."""
    return [f"{alias}-{number}" if number > 1 else alias for number, _ in enumerate(values, 1)]


def erased_person(
    person: Person, pepper: Pepper, ended: Mapping[str, Sequence[str]], org_id: str
) -> ErasedPerson:
    """Return a person for the trail of a tenant; ``ended`` are its memberships that ended, by
    tenant.
    """
    return ErasedPerson(
        tuple((user.issuer, user_hmac(user, pepper)) for user in person.users),
        tuple(address_hmac(address, pepper) for address in person.spelled_addresses),
        tuple(ended.get(org_id, ())),
    )
