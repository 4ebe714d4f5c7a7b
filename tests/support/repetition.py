"""Requests that repeat one thing: as often as a request of the largest size can hold, and as often
as is accepted.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from tenantry.server.asgi_types import MAX_BODY
from tenantry.server.client_limits import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from tenantry.server.repeated_items import (
    MAX_FIELDS,
    MAX_LIST_ITEMS,
    MAX_MEMBERS,
    MAX_PARAMETERS,
    MAX_SEGMENTS,
)

_HEADER_BYTES: Final = MAX_HEAD_BYTES - 2_048
"""Leaves room for the other headers of a request."""
_TARGET_BYTES: Final = MAX_TARGET_BYTES - 512
_FORM_BYTES: Final = 65_000
_BODY_BYTES: Final = MAX_BODY - 1_024
_LINES: Final = MAX_HEADERS - 10
_SOME_ITEMS: Final = MAX_LIST_ITEMS - 16  # the other headers of a request have a few
_FORM: Final = {
    "Content-Type": "application/x-www-form-urlencoded",
    "Sec-Fetch-Site": "same-origin",
}
_JSON: Final = {"Content-Type": "application/json"}
_BROWSER: Final = {"Accept": "text/html"}


class Repetition(NamedTuple):
    """What a request has beside its usual method, path and credential."""

    name: str
    headers: Sequence[tuple[str, str]] = ()
    query: str = ""
    segments: str = ""
    """What follows the path."""
    body: bytes = b""
    refusal: int = 0
    """The status of the service's refusal; 0 for a number that it accepts, or that costs it
    nothing.
    """

    def target(self, path: str) -> str:
        """The path and query of the request."""
        return path + self.segments + (f"?{self.query}" if self.query else "")


SMALL_FORM: Final = Repetition("nothing in a form", [*_FORM.items()], body=b"name=a")


def fill(unit: str, size: int, most: int | None = None) -> str:
    """Repeat a text up to so many bytes, or ``most`` times; ``{}`` in it is the number of the
    repetition.
    """
    largest = len(unit.replace("{}", "fffff"))
    number = size // largest
    return "".join(
        unit.replace("{}", f"{n:x}") for n in range(number if most is None else min(number, most))
    )


_HEADERS: Final[Mapping[str, tuple[str, str, int]]] = {
    "cookies of sign-ins": ("Cookie", "tenantry_sign_in_{}=a; ", 431),
    "cookies": ("Cookie", "a{}=;", 431),
    "cookies of one name": ("Cookie", "tenantry_session=a; ", 431),
    "quoted octets of a cookie": ("Cookie", "\\1", 431),
    "media ranges": ("Accept", "a/b,", 431),
    "parameters of a media range": ("Accept", "a;b=c;", 431),
    "languages": ("Accept-Language", "a,", 431),
    "encodings": ("Accept-Encoding", "a,", 431),
    "entity tags": ("If-None-Match", '"a",', 431),
    "forwarded addresses": ("X-Forwarded-For", "127.0.0.1,", 431),
    "parameters of a content type": ("Content-Type", "application/json;a=b;", 431),
    "quotes of a content type": ("Content-Type", ';a="\\', 431),
    "dots of a credential": ("Authorization", ".", 0),
    "organizations": ("X-Organization-Id", "a,", 431),
    "baggage": ("Baggage", "a=b,", 431),
    "trace states": ("Tracestate", "a=b,", 431),
    "signatures": ("Provider-Signature", "t=1,v1=" + "0" * 64 + ",", 431),
    "schemes of a signature": ("Provider-Signature", "v0=,", 431),
}
"""The header, what it repeats, and the status of too many."""
_QUERIES: Final[Mapping[str, str]] = {
    "parameters without a value": "a{}&",
    "parameters of one name": "state=a&",
    "empty parameters": "&",
    "encoded characters of a parameter": "%41",
    "limits": "limit=1&",
}
_BODIES: Final[Mapping[str, tuple[Mapping[str, str], str, str, str, int, int]]] = {
    "fields of a form": (_FORM, "", "a{}=&", "", _FORM_BYTES, 413),
    "fields of one name": (_FORM, "", "scope=a&", "", _FORM_BYTES, 413),
    "empty fields of a form": (_FORM, "", "&", "", _FORM_BYTES, 413),
    "quotes of a field": (_FORM, "name=", "'", "", _FORM_BYTES, 0),
    "fields of a form of 1 MB": (_FORM, "", "a{}=&", "", _BODY_BYTES, 413),
    "members of one name": (_JSON, "{", '"name":"a",', '"name":"a"}', _BODY_BYTES, 422),
    "members": (_JSON, "{", '"a{}":1,', '"name":"a"}', _BODY_BYTES, 422),
    "characters of a member's name": (_JSON, '{"', "a", '":1}', _BODY_BYTES, 422),
    "paths in a member's name": (_JSON, '{"', " - at `$.", '":1}', _BODY_BYTES, 422),
    "paths in a member": (_JSON, '{"name":"a","role":"', " - at `$.", '"}', _BODY_BYTES, 422),
    "scopes": (
        _JSON,
        '{"orgId":"acme","name":"a","scopes":[',
        '"a:b",',
        '"a:b"]}',
        _BODY_BYTES,
        422,
    ),
    "lists in lists": (_JSON, '{"name":', "[", "1}", _BODY_BYTES, 0),
    "objects in objects": (_JSON, "", '{"name":', "1}", _BODY_BYTES, 0),
    "escapes of a name": (_JSON, '{"name":"', "\\u0041", '"}', _BODY_BYTES, 422),
    "characters of a secret": (_JSON, '{"secret":"', "svc_live_", '"}', _BODY_BYTES, 422),
    "digits": (_JSON, '{"name":', "1", "}", _BODY_BYTES, 0),
    "spaces": (_JSON, "{", " ", '"name":"a"}', _BODY_BYTES, 0),
}
"""Headers, begin, what the body repeats, end, size, and the status of too many."""


@cache
def largest_requests(method: str) -> Sequence[Repetition]:
    """Return requests of this method for each thing that a client can repeat.

    One has as many as fit, which is more than is accepted of most things; one has the largest
    number that is accepted.
    """
    return [
        *_largest_heads(),
        *(_largest_bodies() if method in ("POST", "PUT", "PATCH", "DELETE") else ()),
    ]


def _largest_heads() -> Iterator[Repetition]:
    for name, (header, unit, status) in _HEADERS.items():
        accepted = _SOME_ITEMS // max(1, sum(map(unit.count, ",;\\")))
        yield Repetition(name, [(header, fill(unit, _HEADER_BYTES).rstrip())], refusal=status)
        yield Repetition(
            f"accepted {name}", [(header, fill(unit, _HEADER_BYTES, accepted).rstrip())]
        )
    for prefix, most, status in (("", None, 431), ("accepted ", _SOME_ITEMS, 0)):
        ranges = "text/plain," + fill("a/b,", _HEADER_BYTES - 32, most) + "text/html"
        yield Repetition(f"{prefix}media ranges of a browser", [("Accept", ranges)], refusal=status)
    yield Repetition("lines of one name", [("X-Organization-Id", "a")] * _LINES)
    lists = fill("a/b,", _HEADER_BYTES // _LINES - 8)
    yield Repetition("lines of lists", [("Accept", lists)] * _LINES, refusal=431)
    for name, unit in _QUERIES.items():
        status = 431 if "&" in unit else 0
        yield Repetition(name, query=fill(unit, _TARGET_BYTES), refusal=status)
        yield Repetition(f"accepted {name}", query=fill(unit, _TARGET_BYTES, MAX_PARAMETERS - 1))
    for name, unit in {"segments": "/a", "empty segments": "/", "encoded segments": "/%2e"}.items():
        for prefix, most in (("", None), ("accepted ", MAX_SEGMENTS - 10)):
            segments, status = fill(unit, _TARGET_BYTES, most), 404 if most is None else 0
            yield Repetition(prefix + name, segments=segments, refusal=status)
            yield Repetition(
                f"{prefix}{name} of a browser",
                [*_BROWSER.items()],
                segments=segments,
                refusal=status,
            )


def _largest_bodies() -> Iterator[Repetition]:
    for name, (headers, begin, unit, end, size, status) in _BODIES.items():
        body = begin + fill(unit, size) + end
        yield Repetition(name, [*headers.items()], body=body.encode(), refusal=status)
        separator, most = ("&", MAX_FIELDS - 8) if headers is _FORM else (",", MAX_MEMBERS - 8)
        if separator in unit:
            yield Repetition(
                f"accepted {name}",
                [*headers.items()],
                body=(begin + fill(unit, size, most) + end).encode(),
            )
