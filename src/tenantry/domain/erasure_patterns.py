"""Regular expressions of PostgreSQL for a person's addresses and ids in stored text.

They find a value as plain text, in any letter case for addresses, escaped in JSON, and
percent-encoded. They find no value inside a longer address or id. Raw bodies are searched as
Latin-1, so a character outside of ASCII is also found as the bytes of its UTF-8.
"""

import string
from collections.abc import Iterable
from typing import Final

_ASCII: Final = [chr(code) for code in range(128)]
_LETTERS: Final = "\\u00C0-\\u024F\\u0370-\\u1FFF"
_LETTER_BYTES: Final = "[\\u00C3-\\u00DF][\\u0080-\\u00BF]"
_SHORT_ESCAPES: Final = {'"': '\\\\"', "/": "\\\\/", "\\": "\\\\\\\\"}
"""The escapes of JSON beside those by number, as regular expressions."""
_BEFORE_ADDRESS: Final = frozenset(string.ascii_letters + string.digits + "_.+%~-")
_AFTER_ADDRESS: Final = frozenset(string.ascii_letters + string.digits + "_-")
_BEFORE_ID: Final = _BEFORE_ADDRESS | {"@", "|"}
_AFTER_ID: Final = _AFTER_ADDRESS | {"@", "|", "~"}
_DOT_AND_MORE: Final = "(?:\\.|%2[eE]|\\\\u002[eE])[A-Za-z0-9]"
_NAMES_OF_IDS: Final = "user|owner|subject|actor|person|created_?by|invited_?by|reference"
_SHORTEST_DISTINCT: Final = 6
_SHORTEST_NUMBER: Final = 12
_SHORTEST_WORD: Final = 16
NOTHING: Final = "a^"
"""Matches nowhere."""


def address_pattern(address: str) -> str:
    """Return what finds an address."""
    text = "".join(_any_case(char) for char in address)
    return f"{_not_after(_BEFORE_ADDRESS)}(?:{text}){_not_before(_AFTER_ADDRESS)}"


def id_pattern(user_id: str) -> str:
    """Return what finds the id of a user.

    One that is a short word or number is found only as the whole value of a field in JSON whose
    name says that it is a user's: elsewhere it means something else, such as an amount.
    """
    text = "".join(_spelled([char]) for char in user_id)
    if is_distinct(user_id):
        return f"{_not_after(_BEFORE_ID)}(?:{text}){_not_before(_AFTER_ID)}"
    name = f'"(?:[A-Za-z_]*(?:{_NAMES_OF_IDS})[A-Za-z_]*|sub)"[ \\t\\r\\n]*:[ \\t\\r\\n]*"'
    return f'(?<={_in_any_case(name)})(?:{text})(?=")'


def loose_pattern(value: str) -> str:
    """Return what finds a value in any letter case, also inside a longer one: a hundred times as
    fast, without conditions on what is around it.
    """
    return "".join(_any_case(char) for char in value)


def is_distinct(user_id: str) -> bool:
    """Whether an id can stand for nothing else in a text: it is neither short, nor a number that an
    amount can be, nor a word.
    """
    if user_id.isdigit():
        return len(user_id) >= _SHORTEST_NUMBER
    if user_id.isalpha():
        return len(user_id) >= _SHORTEST_WORD
    return len(user_id) >= _SHORTEST_DISTINCT


def any_of(patterns: Iterable[str]) -> str:
    """Return what finds any of these."""
    return "|".join(f"(?:{pattern})" for pattern in patterns) or NOTHING


def _in_any_case(pattern: str) -> str:
    """Let the words of a pattern match in any letter case."""
    return pattern.replace(_NAMES_OF_IDS, "|".join(map(_word, _NAMES_OF_IDS.split("|"))))


def _word(word: str) -> str:
    return "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word)


def _any_case(char: str) -> str:
    return _spelled(dict.fromkeys([char.lower(), char.upper()]))


def _spelled(chars: Iterable[str]) -> str:
    """Return what finds one of these characters, however it is written."""
    forms = [form for char in chars for form in _forms(char)]
    return f"(?:{'|'.join(dict.fromkeys(forms))})"


def _forms(char: str) -> list[str]:
    encoded = char.encode()
    percent = "".join(f"%{_hex(f'{byte:02x}')}" for byte in encoded)
    units = char.encode("utf-16-be").hex()
    escape = "".join(f"\\\\u{_hex(units[at : at + 4])}" for at in range(0, len(units), 4))
    forms = [_literal(char), escape, percent]
    if char in _SHORT_ESCAPES:
        forms.append(_SHORT_ESCAPES[char])
    if not char.isascii():
        forms.append("".join(f"\\u{byte:04X}" for byte in encoded))
    return forms


def _literal(text: str) -> str:
    return "".join(
        char if char.isascii() and char.isalnum() else f"\\U{ord(char):08X}" for char in text
    )


def _hex(digits: str) -> str:
    """Let hexadecimal digits match in any letter case."""
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in digits)


def _encoded(chars: Iterable[str]) -> str:
    """Return what finds one of these ASCII characters percent-encoded or escaped in JSON."""
    codes = "|".join(_hex(f"{ord(char):02x}") for char in sorted(chars))
    return f"(?:%|\\\\u00)(?:{codes})"


def _class(chars: frozenset[str]) -> str:
    return "".join(_literal(char) for char in sorted(chars))


def _not_after(chars: frozenset[str]) -> str:
    """Return a condition on what is before: none of these characters, or an encoded other one."""
    others = [char for char in _ASCII if char not in chars]
    # an even number of backslashes is text: `\\nada` is a backslash before `nada`
    escape = "(?:^|[^\\\\])(?:\\\\\\\\)*\\\\[bfnrt]"
    above = "\\\\u(?:20[0-6][0-9a-fA-F]|[3-9a-fA-F][0-9a-fA-F]{3})"
    return (
        f"(?:(?<![{_class(chars)}{_LETTERS}])(?<!{_LETTER_BYTES})"
        f"|(?<={escape}|{_encoded(others)}|{above}))"
    )


def _not_before(chars: frozenset[str]) -> str:
    return f"(?![{_class(chars)}{_LETTERS}])(?!{_LETTER_BYTES})(?!{_encoded(chars)})(?!{_DOT_AND_MORE})"
