"""Which requests need a credential, and which scope: decided by method and path alone, refusing where in doubt."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tenantry.domain.access import ACCEPTED_MODES, ANYTHING, Mode, is_scope

ScopeRule = Callable[[str, str], str | None]
"""From method (``WEBSOCKET`` for a websocket) and path to the scope needed, or None for any credential."""

WEBSOCKET: Final = "WEBSOCKET"


class Paths:
    """Paths given exactly, or by a prefix that ends in ``/``; ``/`` alone is the root and nothing below it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._exact = frozenset(_checked(path) for path in paths)
        self._prefixes = tuple(path for path in self._exact if is_prefix(path))

    def __contains__(self, path: str) -> bool:
        return path in self._exact or (path.startswith(self._prefixes) and is_plain(path))


def is_prefix(path: str) -> bool:
    """Whether a path in a table stands for all below it."""
    return path.endswith("/") and path != "/"


def is_plain(path: str) -> bool:
    """Whether a path can only mean what it says: no ``..``, empty segment, backslash or NUL leads elsewhere."""
    segments = path[1:].removesuffix("/").split("/")
    return not any(segment in ("", ".", "..") or "\\" in segment or "\0" in segment for segment in segments)


def scope_rule(scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None) -> ScopeRule:
    """The rule that ``scopes`` stands for.

    A table maps method and path (exact, or a prefix that ends in ``/``) to a scope; the longest prefix counts, and
    HEAD goes by GET where the same path has no entry for HEAD. What the table does not list needs everything, ``*:*``.
    Raises `ValueError` for a table with a faulty entry.
    """
    if scopes is None:
        return lambda _method, _path: None
    if callable(scopes):
        return scopes
    return _Table(scopes)


def check_scope(scope: str | None) -> str | None:
    """The scope, as it is; raises `ValueError` for a text that is none."""
    if scope is not None and not is_scope(scope):
        raise ValueError(f"{scope!r} is not a scope: it must be <resource>:<action>")
    return scope


def accepted_modes(name: str) -> frozenset[Mode]:
    """The modes that ``live``, ``test`` or ``any`` accepts; raises `ValueError` for any other name."""
    modes = ACCEPTED_MODES.get(name)
    if modes is None:
        raise ValueError(f"{name!r} is not a mode: it must be live, test or any")
    return modes


def path_of(scope: Mapping[str, Any]) -> str:
    """The path below the address at which the application is mounted (``root_path``)."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


class _Table:
    def __init__(self, scopes: Mapping[tuple[str, str], str | None]) -> None:
        self._exact = {(method.upper(), _checked(path)): check_scope(scope) for (method, path), scope in scopes.items()}
        self._prefixes = sorted({path for _, path in self._exact if is_prefix(path)}, key=len, reverse=True)

    def __call__(self, method: str, path: str) -> str | None:
        methods = ("HEAD", "GET") if method == "HEAD" else (method,)
        prefixes = [prefix for prefix in self._prefixes if path.startswith(prefix)] if is_plain(path) else []
        for listed in (path, *prefixes):
            for wanted in methods:
                if (wanted, listed) in self._exact:
                    return self._exact[wanted, listed]
        return ANYTHING


def _checked(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not a path: it must begin with /")
    return path
