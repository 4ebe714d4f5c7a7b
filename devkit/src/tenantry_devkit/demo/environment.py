"""Which settings of its surroundings the demo follows.

The demo may start in the folder of another program, whose ``.env`` file and variables have names
that tenantry reads too. So it follows none that lead to a database, a provider or a mail server, no
secret but an operator token and a webhook secret, and of ``.env`` only what no other program sets.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from tenantry.settings import FILE_SUFFIX, VARIABLES, inherited, read_env_file, read_environment

WEBHOOK_SECRET: Final = "PROVIDER_WEBHOOK_SECRET"  # noqa: S105  # a variable's name
OPERATOR_TOKEN: Final = "OPERATOR_TOKEN"  # noqa: S105  # a variable's name
_OF_TENANTRY: Final = "TENANTRY_"
_OWN: Final = frozenset(
    {
        "API_KEY_PEPPER",
        "SESSION_SECRET",
        "HOST",
        "BASE_URL",
        "TRUSTED_PROXIES",
        "MAIL_FROM",
        "OPERATORS",
        "LOG_REQUESTS_TO",
        "PROVIDER_SECRET_KEY",
        "PROVIDER_API_BASE",
        "PROVIDER_ACCOUNTS",
        "PROVIDER_LIVEMODE",
    }
)
_OWN_PREFIXES: Final = ("DATABASE_", "OIDC_", "OPERATOR_ROLE", "SMTP_", "OTEL_")
_NOT_KEPT: Final = frozenset({"PORT", "TENANTRY_DATA_DIR", WEBHOOK_SECRET, OPERATOR_TOKEN})
_DATABASE_VARIABLES: Final = frozenset({"DATABASE_URL", "DATABASE_URL_FILE"})


def _is_own(name: str) -> bool:
    """Whether the demo sets this setting itself, or leaves it out."""
    return name in VARIABLES and (
        name.startswith(_OWN_PREFIXES) or name.removesuffix(FILE_SUFFIX) in _OWN
    )


RULES: Final = frozenset(
    name for name in VARIABLES - _NOT_KEPT if not (_is_own(name) or name.endswith(FILE_SUFFIX))
)
"""The settings that the demo follows and keeps in its file, so that commands in another terminal
follow them too.
"""


class DemoEnvironment(NamedTuple):
    """The variables that the demo follows, and a note on the settings that it ignores; empty if it
    ignores none.
    """

    values: dict[str, str]
    note: str


def read_demo_environment(hint: str) -> DemoEnvironment:
    """Read the variables and the ``.env`` file of the current folder.

    ``hint`` follows in the note if it names a database.
    """
    file = read_env_file()
    of_tenantry = {name: value for name, value in file.items() if name.startswith(_OF_TENANTRY)}
    variables = read_environment(of_tenantry)
    values = {name: value for name, value in variables.items() if value and not _is_own(name)}
    shell = inherited(VARIABLES)
    unread = VARIABLES & file.keys() - of_tenantry.keys() - shell.keys()
    note = _note(
        of_shell=list(filter(_is_own, _set_names(shell))),
        of_file=_set_names({name: file[name] for name in unread}),
        hint=hint,
    )
    return DemoEnvironment(values, note)


def _set_names(values: Mapping[str, str]) -> list[str]:
    """Return the names whose values are not empty."""
    return [name for name, value in values.items() if value]


def _note(*, of_shell: Collection[str], of_file: Collection[str], hint: str) -> str:
    parts = []
    if of_shell:
        parts.append(f"{_listed(of_shell)} of the environment")
    if of_file:
        parts.append(f"{_listed(of_file)} of .env")
    if not parts:
        return ""
    note = f"The demo ignores {' and '.join(parts)}: it has its own."
    if _DATABASE_VARIABLES.isdisjoint((*of_shell, *of_file)):
        return note
    return f"{note} {hint}".rstrip()


def _listed(names: Iterable[str]) -> str:
    *first, last = sorted(names)
    return f"{', '.join(first)} and {last}" if first else last
