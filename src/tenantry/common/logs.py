"""Log lines for people or machines, with anything that looks like a credential taken out.

Two things are masked: what has the shape of a credential, whoever it belongs to, and the deployment's own secrets,
which are known to the letter. Both also where they are percent-encoded or escaped as in JSON.
"""

import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Final, NamedTuple, TextIO
from urllib.parse import quote, quote_plus

from tenantry.common.secret import Secret

FIELDS: Final = "fields"
"""What of a record (its ``extra``) holds what is to be found by name in the line."""
_FIELDS_KNOWN: Final = 1024
SHORTEST: Final = 6
"""Secrets of fewer characters are not masked to the letter: too much else would be."""

_MASK: Final = "[redacted]"
# Signs, also percent-encoded (once or more often) or escaped as in JSON.
_UNDERSCORE: Final = r"(?:_|%(?:25)*5[Ff]|\\+u005[Ff])"
_DOT: Final = r"(?:\.|%(?:25)*2[Ee]|\\+u002[Ee])"
_COLON: Final = r"(?::|%(?:25)*3[Aa]|\\+u003[Aa])"
_COLON_OR_EQUALS: Final = r"(?:[:=]|%(?:25)*3[AaDd]|\\+u003[AaDd])"
_AT: Final = r"(?:@|%(?:25)*40|\\+u0040)"
_BLANK: Final = r"(?:\s|%(?:25)*20|\+)"
_QUOTE: Final = r"(?:\\|%(?:25)*5[Cc])*(?:[\"']|%(?:25)*2[27]|\\u002[27])"
_ENCODED_SLASH: Final = r"(?:\\+/|%(?:25)*2[Ff]|\\+u002[Ff])"
_BASE64: Final = r"(?:[A-Za-z0-9_+/=-]|%(?:25)*[0-9A-Fa-f]{2}|\\+u00[0-9A-Fa-f]{2}|\\+/)"
_BEGINNING: Final = r"(?:(?<![A-Za-z0-9_])|(?<=%[0-9A-Fa-f]{2}))"
_BASE64URL: Final = r"[A-Za-z0-9_-]"
# A pattern's second group: the quote that begins a value, which then goes on to the same quote or the end of the line.
_QUOTED: Final = rf"({_QUOTE})(?:(?!\2)(?:\\+.|%(?:25)*5[Cc](?:%(?:25)*[0-9A-Fa-f]{{2}}|.)|[^\\\r\n]))*"
# What our own messages and those of libraries say behind the name of a scheme.
_SPOKEN: Final = (
    r"(?:(?i:realm|error|scope)=|(?i:auth(?:entication|orization)?|challenges?|checks?|constraints?|credentials?|"
    r"for|from|headers?|method|must|not|one|only|requests?|schemes?|that|tokens?|type|usage|was|with)"
    r"(?:[\s\"',;)\]}<]|[.:](?:[\s\"']|$)|$))"
)


class _Rule(NamedTuple):
    """What to mask; worth a try only where one of the ``hints``, in lower case, is in the text."""

    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    masked: str = _MASK


# Where every first letter may be large or small, a set of them in front lets the search leap to it: five times as fast.
_RULES: Final = (
    # Where a credential stands by its name: up to the quote that ends it, or to the end of the line.
    _Rule(
        ("authorization", "api-key", "cookie"),
        re.compile(
            rf"((?i:authorization|x-api-key|cookie)(?:{_QUOTE}\s*(?:{_COLON_OR_EQUALS}|,)|\s*{_COLON_OR_EQUALS})"
            rf"(?!\s*Bearer <API key or token>)\s*(?:b(?=[\"']))?)(?:{_QUOTED}|[^\r\n]+)"
        ),
        rf"\1\2{_MASK}",
    ),
    # A scheme and what follows it, unless that is a word of a sentence. In lower case "basic" is a word itself.
    _Rule(
        ("bearer", "basic"),
        re.compile(
            rf"([Bb](?i:earer|asic){_BLANK}+)(?!{_SPOKEN})"
            r"(?!(?<=basic )[a-z]+(?:[\s\"',;:.)\]]|$))[^\s\"',;)\]<>]{4,}"
        ),
        rf"\1{_MASK}",
    ),
    # "OPERATOR_TOKEN: is missing" and the like are about a setting.
    _Rule(
        ("passw", "_secret", "_token", "5fsecret", "5ftoken"),
        re.compile(
            rf"([Pp_Ff](?i:(?<=p)assw(?:or)?d|(?:(?<=_)|(?<=5f))(?:secret|(?<!invalid_)token))(?:{_QUOTE})?"
            rf"{_BLANK}*{_COLON_OR_EQUALS}{_BLANK}*(?!(?:is|must|holds) [a-z])(?:[\[(]\s*)?(?:b(?=[\"']))?)"
            rf"(?:{_QUOTED}|(?:[^\s\"'&,;}}\\]|\\+[^\s\"'\\])+)"
        ),
        rf"\1\2{_MASK}",
    ),
    _Rule(("svc",), re.compile(rf"svc{_UNDERSCORE}(?:[a-z]{{1,16}}{_UNDERSCORE})?[A-Za-z0-9]{{20,}}")),
    _Rule(("whsec",), re.compile(rf"whsec{_UNDERSCORE}{_BASE64}{{8,}}")),
    _Rule(
        ("sk_", "rk_", "sk%", "rk%", "sk\\", "rk\\"),
        re.compile(
            rf"[sr]k{_UNDERSCORE}(?:live|test){_UNDERSCORE}{_BASE64}{{8,}}"
            rf"|{_BEGINNING}[sr]k{_UNDERSCORE}{_BASE64}{{16,}}"
        ),
    ),
    # A token in its parts (RFC 7515), and a first part alone: Base64 of text that begins with a brace.
    _Rule(
        ("eyj", "eya", "ewo", "ewk", "ew0"),
        re.compile(
            rf"eyJ{_BASE64URL}{{8,}}(?:{_DOT}{_BASE64URL}*)+"
            rf"|{_BEGINNING}(?:ey[JA]|ew[o0k]){_BASE64URL}{{16,}}(?:{_DOT}{_BASE64URL}*)*"
        ),
    ),
    # User and password in an address: up to the last @ before the path. A slash in the password must be told from a
    # path behind a port; how far it is looked for is limited, or a line of nothing but addresses took long.
    _Rule(
        ("//",),
        re.compile(r"(?<=//)(?!\[)[^/\s:@]*:(?:[^/\s@]+|(?!\d{1,5}[/?#])[^\s@\"'<>]{1,256})(?:@[^/\s@]*)*(?=@)"),
    ),
    _Rule(
        ("2f%2", "\\/\\/", "u002f"),
        re.compile(
            rf"({_ENCODED_SLASH}{{2}})(?!\[)(?:(?!{_ENCODED_SLASH}|{_COLON}|{_AT})[^\s\"'<>]){{0,256}}{_COLON}"
            rf"(?!\d{{1,5}}(?:{_ENCODED_SLASH}|[/?#&\s]|%(?:25)*(?:3[Ff]|2[36])))"
            rf"(?:(?!{_AT})[^\s\"'<>]){{1,256}}(?:{_AT}(?:(?!{_ENCODED_SLASH}|{_AT})[^/\s\"'<>])*)*(?={_AT})"
        ),
        rf"\1{_MASK}",
    ),
)
# What ends a line, moves a cursor, or turns the direction of text.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_UNSAFE_IN_JSON: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_NOISY: Final = (
    "httpx2",
    "httpcore2",
    "httpx",
    "procrastinate",
    "alembic",
    "psycopg.pool",
    "uvicorn.error",
    "stripe",
    "mail.log",
)

logger = logging.getLogger(__name__)


def redact(text: str) -> str:
    """The text with API keys, tokens, webhook secrets, provider keys, passwords and credentials in headers masked."""
    lowered = text.lower()
    for hints, pattern, masked in _RULES:
        for hint in hints:
            if hint in lowered:
                text = pattern.sub(masked, text)
                break
    return text


class Redactor:
    """`redact`, and these very secrets masked too, whatever they look like."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret.reveal())}
        # the longest first: where one is the beginning of another, nothing of that other stays
        self._literals = sorted((form for form in forms if len(form) >= SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without what is secret."""
        for literal in self._literals:
            if literal in text:
                text = text.replace(literal, _MASK)
        return redact(text)


def _forms(secret: str) -> Iterable[str]:
    """How a secret may be written."""
    escaped = json.dumps(secret)[1:-1]
    return {
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        escaped,
        escaped.replace("/", r"\/"),
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
    }


class _RedactingFormatter(logging.Formatter):
    def __init__(self, redactor: Callable[[str], str] = redact) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._redact = redactor
        self._redact_field = lru_cache(_FIELDS_KNOWN)(redactor)  # most are the same again and again

    def _message(self, record: logging.LogRecord) -> str:
        try:
            return self._redact(record.getMessage())
        except Exception:  # noqa: BLE001  # logging itself would print it with its arguments, as they are
            return self._redact(f"{record.msg!r} {[type(argument).__name__ for argument in record.args or ()]}")

    def _fields(self, record: logging.LogRecord) -> dict[str, str | int | float]:
        fields: Mapping[str, str | int | float] = getattr(record, FIELDS, {})
        return {name: self._redact_field(value) if isinstance(value, str) else value for name, value in fields.items()}

    def _trouble(self, record: logging.LogRecord) -> str:
        """The traceback, and where the line was logged if that was asked for; empty as a rule."""
        told = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else record.exc_text or ""
        if record.stack_info:
            told += f"\n{record.stack_info}"
        return self._redact(told.strip("\n"))


class ConsoleFormatter(_RedactingFormatter):
    """Lines for a person to read. Only the first line of an entry begins at the margin, and nothing makes another."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback if there is one."""
        time = self.formatTime(record, self.datefmt)
        fields = "".join(f" {name}={value}" for name, value in self._fields(record).items())
        line = f"{time} {record.levelname:7} {record.name}  {_one_line(self._message(record) + fields)}"
        trouble = self._trouble(record)
        return "\n  ".join([line, *map(_one_line, trouble.split("\n"))]) if trouble else line


class JsonFormatter(_RedactingFormatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """``{time, level, logger, message, exception?}``, and the record's own `FIELDS` beside them."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
            **self._fields(record),
        }
        if trouble := self._trouble(record):
            line["exception"] = trouble
        return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False))


def _one_line(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is logging's
        """Nobody reads on: logging's own way prints the record's arguments as they are."""


def configure(log_format: str, level: int = logging.INFO, secrets: Iterable[Secret] = ()) -> None:
    """Send everything from ``level`` up to stderr, as ``console`` or ``json`` lines, without these secrets."""
    redactor = Redactor(secrets)
    handler = _Handler(sys.stderr)
    handler.setFormatter(JsonFormatter(redactor) if log_format == "json" else ConsoleFormatter(redactor))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def configure_service(log_format: str, secrets: Iterable[Secret]) -> None:
    """`configure` for a process of the service: warnings and exceptions that nobody catches become log lines too."""
    configure(log_format, secrets=secrets)
    logging.captureWarnings(True)  # noqa: FBT003  # the signature is logging's
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda thread: _log_uncaught(thread.exc_type, thread.exc_value, thread.exc_traceback)
    sys.unraisablehook = lambda found: _log_uncaught(found.exc_type, found.exc_value, found.exc_traceback)


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt | SystemExit):
        logger.critical("nobody caught this", exc_info=(kind, error or kind(), trace))
