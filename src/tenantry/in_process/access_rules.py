"""Which requests need a credential, and which scope. Method and path alone decide; unclear cases
are rejected.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypedDict

from tenantry.domain.features import is_feature_id
from tenantry.domain.permissions import ACCEPTED_MODES, Mode
from tenantry.domain.requirements import Requirement
from tenantry.domain.scopes import ANYTHING, is_scope
from tenantry.in_process.application_request import ClientAddress

ScopeRule = Callable[[str, str], str | None]
"""Returns the required scope for a method (``WEBSOCKET`` for a websocket) and path; None accepts
any credential.
"""

_AMBIGUOUS: Final = ("//", "/./", "/../", "\\", "\0")


def requirement_of(scope: str | None, mode: str, feature: str | None = None) -> Requirement:
    """Return the requirement of a route: a scope of None accepts any credential. Raises
    `ValueError` for an invalid argument.
    """
    if feature is not None and not is_feature_id(feature):
        raise ValueError(f"{feature!r} is not the id of a feature")
    scopes = () if scope is None else (checked_scope(scope),)
    features = () if feature is None else (feature,)
    return Requirement(scopes, features, accepted_modes(mode))


class AccessOptions(TypedDict, total=False):
    """The options of a middleware, which documents them."""

    public: Iterable[str]
    optional: bool
    scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None
    mode: str
    on_demand: bool
    client_address: ClientAddress | None


class AccessRules:
    """The access rules of an application, by the `AccessOptions` of its middleware."""

    def __init__(
        self,
        *,
        public: Iterable[str] = (),
        optional: bool = False,
        scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None = None,
        mode: str = "live",
        on_demand: bool = False,
        client_address: ClientAddress | None = None,
    ) -> None:
        """Raises `ValueError` for an invalid path, scope or mode."""
        self._public = frozenset(map(checked_path, public))
        self._longest_public = max(map(len, self._public), default=0)
        self._optional = optional
        self._scope_needed = scope_rule(scopes)
        self._accepted_modes = accepted_modes(mode)
        self._on_demand = on_demand
        self.client_address: Final = client_address
        """Returns the address of a request's client; None for what the server says."""

    def depends_on_caller(self, path: str) -> bool:
        """Whether requests for a path are authenticated, be it only those with a credential."""
        return not self._on_demand and self._public.isdisjoint(
            entries_for(path, self._longest_public)
        )

    def requirement(
        self,
        method: str,
        path: str,
        *,
        has_credential: bool,
    ) -> Requirement | None:
        """Return what the caller of a request needs; None if it is not authenticated."""
        if not self.depends_on_caller(path):
            return None
        needed = self._scope_needed(method, path)
        if needed is None and self._optional and not has_credential:
            return None
        scopes = () if needed is None else (checked_scope(needed),)
        return Requirement(scopes, modes=self._accepted_modes)


def entries_for(path: str, longest: int) -> Iterator[str]:
    """Yield the entries of a table that may match a path, the most specific first: itself, then
    prefixes that end in /.

    ``longest`` is the length of the table's longest entry: a client may send thousands of segments,
    so those below are not tried. ``/`` is no prefix. An ambiguous path (with ``.``, ``..``, an
    empty segment, backslash or NUL) is below no prefix.
    """
    yield path
    if path.endswith(("/.", "/..")) or any(part in path for part in _AMBIGUOUS):
        return
    end = min(len(path), longest)
    while (end := path.rfind("/", 1, end)) > 0:
        yield path[: end + 1]


def scope_rule(scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None) -> ScopeRule:
    """Make the rule of a table of methods and paths, or return a rule as it is.

    A path is exact, or a prefix that ends in ``/``; the longest prefix counts. HEAD uses the entry
    of GET unless the path has its own. Requests that the table does not list require ``*:*``.
    Raises `ValueError` for an invalid entry.
    """
    if scopes is None:
        return lambda _method, _path: None
    if callable(scopes):
        return scopes
    table = {
        (method.upper(), checked_path(path)): None if scope is None else checked_scope(scope)
        for (method, path), scope in scopes.items()
    }
    longest = max((len(path) for _, path in table), default=0)

    def rule(method: str, path: str) -> str | None:
        methods = ("HEAD", "GET") if method == "HEAD" else (method,)
        requests = ((wanted, entry) for entry in entries_for(path, longest) for wanted in methods)
        return next((table[request] for request in requests if request in table), ANYTHING)

    return rule


def checked_path(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not a path: it must begin with /")
    return path


def checked_scope(scope: str) -> str:
    if not is_scope(scope):
        raise ValueError(f"{scope!r} is not a scope: it must be <resource>:<action>")
    return scope


def accepted_modes(name: str) -> tuple[Mode, ...]:
    """Return the modes that ``live``, ``test`` or ``any`` accepts. Raises `ValueError` for another
    name.
    """
    modes = ACCEPTED_MODES.get(name)
    if modes is None:
        raise ValueError(f"{name!r} is not a mode: it must be live, test or any")
    return modes
