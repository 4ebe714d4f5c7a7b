"""The issuers whose users may be members: one, or one for each directory of a template."""

import re
from typing import Final

import msgspec

DIRECTORY: Final = "{tenantid}"
"""The placeholder of a directory's id in a template, as Microsoft Entra ID publishes it."""
DIRECTORY_CLAIM: Final = "tid"
"""The claim that names a token's directory."""
ANY_DIRECTORY: Final = "*"
_DIRECTORY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_directory_id(text: str) -> bool:
    """Whether this may be the id of a directory; a domain name is none."""
    return _DIRECTORY_ID.fullmatch(text) is not None


class Issuers(msgspec.Struct, frozen=True):
    """The trusted issuers. ``name`` is the only one, or a template that contains `DIRECTORY`.

    ``directories`` are the accepted ids, or `ANY_DIRECTORY` alone; empty without a template.
    """

    name: str
    directories: tuple[str, ...] = ()

    @property
    def is_template(self) -> bool:
        return DIRECTORY in self.name

    @property
    def known(self) -> list[str]:
        """The trusted issuers by name; empty if any directory is accepted."""
        if not self.is_template:
            return [self.name]
        return (
            []
            if ANY_DIRECTORY in self.directories
            else [self.of(each) for each in self.directories]
        )

    @property
    def pattern(self) -> str | None:
        """What the issuers match with SQL's LIKE if any directory is accepted; else None."""
        if ANY_DIRECTORY not in self.directories:
            return None
        literal = self.name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return literal.replace(DIRECTORY, "%")

    @property
    def only(self) -> str | None:
        """The issuer, if there is only one."""
        return self.known[0] if len(self.known) == 1 else None

    @property
    def any_directory(self) -> str:
        """The address at which users of any directory sign in, by Microsoft Entra ID's name."""
        return self.of("organizations")

    def of(self, directory: str) -> str:
        """Return the issuer of a directory."""
        return self.name.replace(DIRECTORY, directory)

    def accepts(self, directory: str) -> bool:
        """Whether users of this directory are accepted."""
        if ANY_DIRECTORY in self.directories:
            return is_directory_id(directory)
        return directory in self.directories

    def trusts(self, issuer: str) -> bool:
        """Whether users of this issuer are accepted."""
        if not self.is_template:
            return issuer == self.name
        before, _, after = self.name.partition(DIRECTORY)
        if not issuer.startswith(before) or not issuer.endswith(after):
            return False
        directory = issuer[len(before) : len(issuer) - len(after)]
        return self.of(directory) == issuer and self.accepts(directory)
