"""Roles of users: the three that every deployment has, and those of the plan catalog."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Final

import msgspec

from tenantry.domain.errors import ValidationError
from tenantry.domain.scopes import ANYTHING, MAX_SCOPES, covers, covers_all, intersect, is_scope

ROLE_FORM: Final = "[a-z][a-z0-9_-]{0,31}"
MANAGE_MEMBERS: Final = "members:write"
_role_id: Final = re.compile(ROLE_FORM, re.ASCII)


def is_role_id(text: str) -> bool:
    """Whether ``text`` has the form of a role's id."""
    return _role_id.fullmatch(text) is not None


class BuiltInRole(StrEnum):
    """The ids of the roles that every deployment has."""

    MEMBER = "member"
    ADMIN = "admin"
    OWNER = "owner"


class Role(msgspec.Struct, frozen=True):
    """A role, which grants ``scopes``.

    Its users may add, change and remove members with the roles ``gives``; None means every role
    whose scopes they hold. ``limited_by`` is the name of another role that the scopes are
    limited to, see `common_role`.
    """

    id: str
    name: str
    scopes: tuple[str, ...] = ()
    gives: frozenset[str] | None = frozenset()
    limited_by: str | None = None

    @property
    def is_owner(self) -> bool:
        """Whether this is the role owner, the only one that gives the level OWNER."""
        return self.id == BuiltInRole.OWNER

    def includes(self, other: "Role") -> bool:
        """Whether this role permits everything that ``other`` permits."""
        if self.is_owner or other.is_owner:
            return self.is_owner
        gives_as_much = common_gives(self.gives, other.gives) == other.gives
        return gives_as_much and covers_all(self.scopes, other.scopes)


MEMBER: Final = Role(BuiltInRole.MEMBER, "Member", ("projects:*", "tenants:read", "billing:read"))
ADMIN: Final = Role(BuiltInRole.ADMIN, "Admin", (ANYTHING,), gives=None)
OWNER: Final = Role(BuiltInRole.OWNER, "Owner", (ANYTHING,), gives=None)


class Roles:
    """The roles of a deployment, highest first: owner, admin, those of the catalog, member."""

    def __init__(self, own: Sequence[Role] = ()) -> None:
        self._by_id = {role.id: role for role in (OWNER, ADMIN, *own, MEMBER)}

    def __iter__(self) -> Iterator[Role]:
        return iter(self._by_id.values())

    def __contains__(self, role_id: str) -> bool:
        return role_id in self._by_id

    def find(self, role_id: str) -> Role:
        """Return the role with this id. One that has left the catalog permits nothing."""
        return self._by_id.get(role_id) or Role(role_id, role_id)

    def require(self, role_id: str) -> Role:
        """Return the role with this id. Raises `ValidationError` for an unknown one."""
        if role_id not in self:
            raise ValidationError(("role", f"is none of the roles {', '.join(self._by_id)}"))
        return self._by_id[role_id]

    def given_by(self, role: Role) -> list[Role]:
        """Return the roles that the users of a role may give."""
        return [other for other in self if _gives(role, other)]

    def highest(self, role_ids: Iterable[str]) -> Role:
        """Return the highest of these roles; member without any.

        Of two roles of which neither includes the other, the one that the catalog lists first.
        """
        named = set(role_ids)
        found = [role for role in self if role.id in named] or [MEMBER]
        highest = found[0]
        for role in found:
            if role.includes(highest):
                highest = role
        return highest


BUILT_IN_ROLES: Final = Roles()


def _gives(role: Role, other: Role) -> bool:
    if role.gives is not None:
        return other.id in role.gives
    return role.is_owner or (not other.is_owner and covers_all(role.scopes, other.scopes))


def common_role(claimed: Role, stored: Role) -> Role:
    """Return the role that permits what two roles both permit: the lower one, if one includes the
    other.
    """
    if claimed.includes(stored):
        return stored
    if stored.includes(claimed):
        return claimed
    return Role(
        stored.id,
        stored.name,
        intersect(claimed.scopes, stored.scopes),
        common_gives(claimed.gives, stored.gives),
        claimed.name,
    )


def common_gives(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the roles that two roles both give; None means every role."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


# The table [[roles]] of the catalog


class RoleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A role of the catalog."""

    id: str
    scopes: tuple[str, ...]
    gives: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        if not is_role_id(self.id):
            raise ValueError("id must be 1 to 32 of a-z, 0-9, '_' and '-', and begin with a letter")
        if self.id in BUILT_IN_ROLES:
            raise ValueError("is built in: choose another id")
        if self.name is not None and not self.name.strip():
            raise ValueError("name must not be blank")
        self._check_scopes()

    def _check_scopes(self) -> None:
        if not 1 <= len(self.scopes) <= MAX_SCOPES:
            raise ValueError(f"give 1 to {MAX_SCOPES} scopes")
        for scope in self.scopes:
            if not is_scope(scope):
                raise ValueError(f"{scope!r} is not a scope: write resource:action")

    def to_role(self) -> Role:
        """Return the role that this entry describes."""
        return Role(self.id, self.name or self.id, self.scopes, frozenset(self.gives))


def gives_faults(entries: Sequence[RoleEntry]) -> Iterator[str]:
    """Yield what is wrong with the roles that the roles of the catalog give."""
    known = {role.id: role for role in chain(BUILT_IN_ROLES, map(RoleEntry.to_role, entries))}
    for entry in entries:
        if entry.gives and not covers(entry.scopes, MANAGE_MEMBERS):
            yield f"role {entry.id!r}: gives roles, but lacks the scope {MANAGE_MEMBERS}"
        for given in entry.gives:
            if fault := _given_fault(entry, given, known):
                yield f"role {entry.id!r}: {fault}"


def _given_fault(entry: RoleEntry, given: str, known: Mapping[str, Role]) -> str | None:
    if given not in known:
        return f"gives an unknown role {given!r}"
    if given == BuiltInRole.OWNER:
        return "gives 'owner': only an owner can"
    lacking = [scope for scope in known[given].scopes if not covers(entry.scopes, scope)]
    if lacking:
        return f"gives {given!r}, whose scopes it lacks: {', '.join(lacking)}"
    return None
