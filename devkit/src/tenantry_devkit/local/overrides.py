"""Setting single values of an event: ``path=value``, as on the command line."""

import difflib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

_EVENT: Final = "event"
_FREE: Final = frozenset({"metadata", "previous_attributes"})
"""What takes any name: the account's owner decides what is in them."""

Json = dict[str, Any]


class OverrideError(ValueError):
    """A path that does not lead to a value of the event, or a text that is no override."""


def override(event: Json, texts: Sequence[str]) -> None:
    """Set values in an event, in place. Raises `OverrideError`, with the text that is at fault in its message.

    A path leads into the event's object by names and, in lists, numbers, with dots between them; one that begins with
    ``event.`` leads into the event itself. It must lead to something that is there; only in ``metadata`` (and in
    ``event.data.previous_attributes``) names may be new. A value is JSON, or else a text.
    """
    for text in texts:
        path, equals, value = text.partition("=")
        names = path.split(".")
        if not equals or not all(names):
            raise OverrideError(f"{text!r}: must be path=value, such as cancel_at_period_end=true")
        root: Any = event
        if names[0] == _EVENT and len(names) > 1:
            names = names[1:]
        elif isinstance(event["data"], dict) and "object" in event["data"]:
            root = event["data"]["object"]
        else:
            raise OverrideError(f"{text!r}: the event has no object any more")
        _set(root, names, _value(value), text)


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    except UnicodeEncodeError:
        raise OverrideError(f"{text!r}: is not UTF-8") from None


def _set(place: object, names: Sequence[str], value: object, text: str) -> None:
    *way, last = names
    done = ""
    is_free = False
    for name in way:
        is_free = is_free or name in _FREE
        if is_free and isinstance(place, dict):
            place.setdefault(name, {})
        container, key = _slot(place, name, done, text)
        place = container[key]
        done = f"{done}.{name}" if done else name
    container, key = _slot(place, last, done, text, takes_new=is_free)
    container[key] = value


def _slot(
    place: object, name: str, done: str, text: str, *, takes_new: bool = False
) -> tuple[Any, str | int]:  # fmt: skip
    """The object or list that the path has led to so far, and its key or position that is meant by ``name``."""
    if isinstance(place, list):
        if name.isascii() and name.isdigit() and int(name) < len(place):
            return place, int(name)
        raise OverrideError(f"{text!r}: {done} is a list of {len(place)}, and has no {name!r}")
    if not isinstance(place, dict):
        raise OverrideError(f"{text!r}: {done} is {_kind(place)}: nothing is below it")
    if name in place or takes_new:
        return place, name
    close = difflib.get_close_matches(name, list(place), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(place))}"
    raise OverrideError(f"{text!r}: there is no {name!r}{f' in {done}' if done else ''}; {hint}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a text"
        case _:
            return "a number"
