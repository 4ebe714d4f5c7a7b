"""How the text of a variable is read: each kind with its bounds and the messages for its faults."""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

import psycopg

from tenantry.common.secret import Secret, is_known_default, is_placeholder
from tenantry.domain.api_keys import is_prefix
from tenantry.domain.branding import LONGEST_NAME, MOST_LOGO_BYTES, accent_of, check_logo
from tenantry.domain.imported_keys import LONGEST_PATTERN, read_key_pattern
from tenantry.domain.issuers import ANY_DIRECTORY, is_directory_id
from tenantry.domain.mail_addresses import is_deliverable
from tenantry.domain.members import is_email
from tenantry.domain.names import has_refused_characters
from tenantry.domain.owner_mails import OwnerNotice
from tenantry.domain.product_samples import MOST_BYTES as MOST_SAMPLE_BYTES
from tenantry.domain.product_samples import parse_samples
from tenantry.domain.roles import is_role_id
from tenantry.server.cors import ANY_ORIGIN

EMBEDDED: Final = "embedded"
"""The `DATABASE_URL` of a PostgreSQL that the command itself starts."""

_QUOTES: Final = frozenset("\"'`\u201c\u201d\u2018\u2019\u201e")
_OTHER_THAN_SECRETS: Final = {
    "sk": "a key of the provider's API, which belongs to PROVIDER_SECRET_KEY",
    "rk": "a restricted key of the provider's API, which belongs to PROVIDER_SECRET_KEY",
    "pk": "a publishable key of the provider",
    "we": "the id of an endpoint",
}
"""What people copy instead of a webhook secret, by the prefix."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_ACCOUNT: Final = re.compile(r"acct_[A-Za-z0-9_]{1,250}")
_SCHEMES_WITHOUT_ORIGIN: Final = frozenset(
    ("about", "blob", "content", "data", "file", "filesystem", "ftp", "javascript", "ws", "wss")
)
"""Those of no page, and those whose pages send ``Origin: null``."""
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_MOST_WORDS_OF_OPERATOR: Final = 2  # an issuer and a subject
_HEADER_NAME: Final = re.compile(r"(?!.{65})[A-Za-z](?:-?[A-Za-z0-9])*")
"""Without underscores, which gateways drop and WSGI treats as hyphens."""
_RESERVED_HEADERS: Final = frozenset(
    {
        "age",
        "allow",
        "alt-svc",
        "authorization",
        "cache-control",
        "connection",
        "cookie",
        "date",
        "dnt",
        "etag",
        "expect",
        "expires",
        "forwarded",
        "from",
        "host",
        "idempotency-key",
        "keep-alive",
        "last-modified",
        "link",
        "location",
        "max-forwards",
        "origin",
        "pragma",
        "prefer",
        "priority",
        "provider-signature",
        "range",
        "referer",
        "retry-after",
        "server",
        "set-cookie",
        "stripe-signature",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "vary",
        "via",
        "warning",
        "www-authenticate",
        "x-access",
        "x-effective-plan",
        "x-features",
        "x-http-method",
        "x-key-external-id",
        "x-mode",
        "x-on-behalf-of",
        "x-organization-id",
        "x-plan",
        "x-problem",
        "x-real-ip",
        "x-request-id",
        "x-subscription-status",
        "x-tenant-id",
    }
)
_RESERVED_HEADER_STARTS: Final = (
    "accept",
    "access-control-",
    "content-",
    "if-",
    "proxy-",
    "ratelimit",
    "sec-",
    "webhook-",
    "x-act-",
    "x-forwarded-",
    "x-http-method-",
    "x-method-",
    "x-original-",
    "x-principal-",
    "x-rewrite-",
)
"""Headers that clients, gateways, frameworks or tenantry give another meaning."""
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_SPACE: Final = re.compile(r"\s")
_VISIBLE: Final = re.compile("[!-~]+")
_LONGEST_LINK: Final = 2000
_MAIL_ADDRESS: Final = re.compile(r"[A-Za-z0-9._+=~-]+@[A-Za-z0-9.-]+")
"""Without characters that mean something in a ``mailto:`` address."""
_RESOURCE: Final = re.compile(r"[A-Za-z0-9._~:/?#@\[\]!$&'()*+,;=%-]{1,2000}")
_VARIABLE: Final = re.compile("(?!.{65})[A-Za-z_][A-Za-z0-9_]*")
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_NOT_AN_ADDRESS: Final = "must be an http or https address"
_NOT_A_PAGE: Final = f"{_NOT_AN_ADDRESS}, or the origin of an application (capacitor://localhost)"

Value = TypeVar("Value")
Parsed_co = TypeVar("Parsed_co", covariant=True)


class Kind(NamedTuple, Generic[Parsed_co]):
    """How the text of a variable is read. ``parse`` raises `ValueError` with one message for each
    fault.

    A secret may be in a file that the variable ``NAME_FILE`` names.
    """

    name: str
    parse: Callable[[str], Parsed_co]
    bounds: str = ""
    is_secret: bool = False
    parse_in_demo: Callable[[str], Parsed_co] | None = None


def _require(holds: object, fault: str) -> None:
    if not holds:
        raise ValueError(fault)


def number(least: int, most: int) -> Kind[int]:
    def parse(text: str) -> int:
        is_in_range = _WHOLE_NUMBER.fullmatch(text) and least <= int(text) <= most
        _require(is_in_range, f"must be a whole number, {least} to {most}")
        return int(text)

    return Kind("number", parse, f"{least} to {most}")


def choice(*choices: str) -> Kind[str]:
    def parse(text: str) -> str:
        _require(text in choices, f"must be one of {', '.join(choices)}")
        return text

    return Kind("choice", parse, ", ".join(f"`{choice}`" for choice in choices))


def several(parse: Callable[[str], str], bounds: str) -> Kind[tuple[str, ...]]:
    """Read a list separated by commas; ``parse`` reads an entry."""
    return Kind("text", lambda text: _read_each(parse, _entries(text)), bounds)


def _entries(text: str) -> list[str]:
    return list(filter(None, map(str.strip, text.split(","))))


def secret(shortest: int = 1) -> Kind[Secret]:
    """Read a secret of at least ``shortest`` characters. 1: a third party issues it, and it is not
    checked.
    """
    bounds = f"at least {shortest} characters" if shortest > 1 else ""
    return Kind(
        "secret",
        partial(_read_secret, shortest=shortest),
        bounds,
        is_secret=True,
        parse_in_demo=_read_secret,
    )


def secrets(
    shortest: int, check: Callable[[str], None] = lambda _: None
) -> Kind[tuple[Secret, ...]]:
    """Read secrets separated by commas, for a rotation. ``check`` raises `ValueError` for one that
    cannot be right.
    """

    def read(text: str, shortest: int) -> Secret:
        check(text)
        return _read_secret(text, shortest)

    def parse(text: str, shortest: int = shortest) -> tuple[Secret, ...]:
        return _read_each(partial(read, shortest=shortest), map(str.strip, text.split(",")))

    return Kind(
        "secrets",
        parse,
        f"each at least {shortest} characters",
        is_secret=True,
        parse_in_demo=partial(parse, shortest=1),
    )


def _read_each(read: Callable[[str], Value], texts: Iterable[str]) -> tuple[Value, ...]:
    values, faults = list[Value](), list[str]()
    for text in texts:
        try:
            values.append(read(text))
        except ValueError as error:
            faults += error.args
    if faults:
        raise ValueError(*faults)
    return tuple(values)


def _read_secret(text: str, shortest: int = 1) -> Secret:
    _require(text, "holds an empty secret")
    _require(not is_placeholder(text), "is a placeholder of an example: replace it by the secret")
    _require(len(text) >= shortest, f"is shorter than {shortest} characters")
    is_weak = shortest > 1 and is_known_default(text)
    _require(not is_weak, "is a well-known default; make a new secret (openssl rand -hex 32)")
    return Secret(text)


def check_webhook_secret(text: str) -> None:
    """Raise `ValueError` for a text that the payment provider issues for another purpose, or that
    was copied badly.
    """
    _require(
        _QUOTES.isdisjoint((text[:1], text[-1:])),
        "has quotes around it: remove them, because not every reader of such a file does",
    )
    _require(
        not _SPACE.search(text),
        "contains white space: copy the endpoint's signing secret (whsec_...) again",
    )
    prefix = text.partition("_")[0]
    what = _OTHER_THAN_SECRETS.get(prefix)
    _require(
        what is None,
        f"is {what} ({prefix}_...): copy the signing secret (whsec_...) of the webhook endpoint",
    )


def _read_flag(text: str) -> bool:
    _require(text.lower() in _FLAGS, "must be true or false")
    return _FLAGS[text.lower()]


def _read_url(text: str) -> str:
    _split(text)
    return text.rstrip("/")


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(_NOT_AN_ADDRESS) from None
    _require(parts.scheme in _DEFAULT_PORTS and parts.hostname, _NOT_AN_ADDRESS)
    return parts


def read_conninfo(text: str) -> str:
    """Return an address of PostgreSQL as it is. Raises `ValueError` for what is none."""
    try:
        psycopg.conninfo.conninfo_to_dict(text)
    except (psycopg.ProgrammingError, UnicodeDecodeError):
        # libpq's message quotes the text, and so the password
        raise ValueError(
            "must be an address of PostgreSQL (postgresql://...), with the special characters of its password "
            "percent-encoded (@ is %40, / is %2F), and parameters that libpq knows"
        ) from None
    return text


def _read_origin(
    text: str,
    no_path: str = "the service is at the root of its host",
    split: Callable[[str], SplitResult] = _split,
) -> str:
    """The scheme, host and port of an address, as browsers write them (RFC 6454 section 6.2)."""
    parts = split(text)
    host = parts.hostname or ""
    port = _port_of(parts)
    ascii_host = "must name its host in ASCII letters (`xn--...`), digits, dots and hyphens"
    faults = {
        "must not contain a user or password": "@" in parts.netloc,
        "must not have a query or a fragment: no `?`, no `#`": not {"?", "#"}.isdisjoint(text),
        f"must not have a path: {no_path}": parts.path not in ("", "/"),
        "has an invalid port": port is None,
        ascii_host: _HOST.fullmatch(host) is None,
    }
    if any(faults.values()):
        raise ValueError(*compress(faults, faults.values()))
    authority = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{authority}{port}"


def _port_of(parts: SplitResult) -> str | None:
    """The port as an origin shows it: not the scheme's own; None if it is invalid."""
    try:
        port = parts.port
    except ValueError:
        return None
    if port == 0:
        return None
    return "" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}"


def read_page_origin(text: str) -> str:
    """The origin of pages, those of an application with its own scheme included, or
    `ANY_ORIGIN`.
    """
    if text == ANY_ORIGIN:
        return text
    _require(
        text.lower() != "null",
        "must not contain null: every sandboxed page and local file has this origin",
    )
    shown = "an entry" if "@" in text else repr(text)  # not its password
    try:
        return _read_origin(
            text, "an origin is a scheme, a host and maybe a port", _split_page_address
        )
    except ValueError as error:
        raise ValueError(*(f"{shown} {fault}" for fault in error.args)) from None


def _split_page_address(text: str) -> SplitResult:
    """Split an address of a page, as `_split`. Its scheme can be an application's."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(_NOT_A_PAGE) from None
    if parts.scheme in _DEFAULT_PORTS:
        return _split(text)
    _require(
        parts.scheme not in _SCHEMES_WITHOUT_ORIGIN,
        f"is the origin of no page that can be listed: {parts.scheme} pages send null, if any",
    )
    # a misspelt http would be an application of its own
    _require(parts.hostname and not parts.scheme.startswith("ht"), _NOT_A_PAGE)
    _require(text == text.lower(), "must be in lower case, as browsers send it")
    return parts


def read_network(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not an address or network") from None
    return text


def read_key_prefix(text: str) -> str:
    """Return a prefix of API keys. Raises `ValueError` for what is none."""
    _require(is_prefix(text), f"{text!r} is not 2 to 16 lower-case letters (a-z) and digits")
    return text


def _read_api_key_header(text: str) -> str:
    name = text.lower()
    _require(
        _HEADER_NAME.fullmatch(text),
        "must be the name of a header: 1 to 64 letters, digits and hyphens, a letter first",
    )
    is_reserved = name in _RESERVED_HEADERS or name.startswith(_RESERVED_HEADER_STARTS)
    _require(not is_reserved, f"{text!r} already has a meaning: choose another, such as X-API-Key")
    return text


def read_account(text: str) -> str:
    _require(_ACCOUNT.fullmatch(text), f"{text!r} is not an account id (acct_...)")
    return text


def read_notice(text: str) -> str:
    fault = f"{text!r} is not a notice: choose from {', '.join(OwnerNotice)}"
    _require(text in set(OwnerNotice), fault)
    return text


def _read_claim(text: str) -> str:
    _require(text.isprintable() and " " not in text, "must be the name of one claim")
    return text


def _read_operator(text: str) -> str:
    """Read a subject, an address, or an issuer with a subject."""
    words = text.split()
    # subjects are ASCII, and an address in other letters may only look like the one that is meant
    is_user = text.isascii() and text.isprintable() and len(words) <= _MOST_WORDS_OF_OPERATOR
    _require(is_user, f"{text!r} is neither a user's subject nor an address")
    _require(
        text == text.lower() or not is_email(text),
        f"{text!r} is an address: write it in lower case",
    )
    return " ".join(words)


def _read_directory(text: str) -> str:
    _require(
        text == ANY_DIRECTORY or is_directory_id(text),
        f"{text!r} is not the id of a directory: it is `tid` of its tokens, not a domain name",
    )
    return text


def _read_role(text: str) -> tuple[str, str]:
    theirs, _, ours = (part.strip() for part in text.rpartition("="))
    _require(
        theirs and is_role_id(ours),
        f"{text!r} is not `theirs=ours`: ours is the id of a role",
    )
    return theirs, ours


def _read_role_map(text: str) -> Mapping[str, str]:
    pairs = _read_each(_read_role, _entries(text))
    _require(pairs, "maps no role")
    counts = Counter(theirs for theirs, _ in pairs)
    twice = [theirs for theirs, count in counts.items() if count > 1]
    if twice:
        raise ValueError(*(f"{theirs!r} is mapped twice" for theirs in twice))
    return dict(pairs)


def _read_product_name(text: str) -> str:
    is_visible = any(letter.isprintable() and not letter.isspace() for letter in text)
    _require(
        len(text) <= LONGEST_NAME and is_visible and not has_refused_characters(text),
        f"must be at most {LONGEST_NAME} visible characters",
    )
    return text


def _read_accent(text: str) -> str:
    accent_of(text)
    return text


def _read_file(path: str, parse: Callable[[bytes], Value], most: int) -> Value:
    """Return what ``parse`` makes of a file of at most ``most`` bytes. Raises `ValueError`, also
    for a longer one.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return parse(content)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def _parse_logo(content: bytes) -> bytes:
    check_logo(content)
    return content


def _read_link(text: str) -> str:
    """Return the address of a page that pages and mails link."""
    is_visible = _VISIBLE.fullmatch(text) is not None and len(text) <= _LONGEST_LINK
    _require(is_visible, f"must be at most {_LONGEST_LINK} visible ASCII characters")
    _require("@" not in _split(text).netloc, "must not contain a user or password")
    return text


def _read_resource(text: str) -> str:
    """Return the identifier of a protected resource, as it is (RFC 9728 section 1.2)."""
    parts = _split(text)
    faults = {
        "must not contain a user or password": "@" in parts.netloc,
        "must not have a query or a fragment: no `?`, no `#`": not {"?", "#"}.isdisjoint(text),
        "has an invalid port": _port_of(parts) is None,
        "must be at most 2000 of the characters of addresses": _RESOURCE.fullmatch(text) is None,
    }
    if any(faults.values()):
        raise ValueError(*compress(faults, faults.values()))
    return text


def _read_support(text: str) -> str:
    """Return a link of `_read_link`, or a mail address as a link."""
    address = text.removeprefix("mailto:")
    if _MAIL_ADDRESS.fullmatch(address) and is_deliverable(address):
        return f"mailto:{address}"
    try:
        return _read_link(text)
    except ValueError:
        raise ValueError("must be a mail address, or an http or https address") from None


def _read_variable(text: str) -> str:
    _require(_VARIABLE.fullmatch(text), "must be the name of a variable, such as NIMBUS_API_KEY")
    return text


NOTICES: Final = ", ".join(f"`{notice}`" for notice in OwnerNotice)
TEXT: Final = Kind("text", str)
TEXT_WITH_PASSWORD: Final = Kind("text", str, is_secret=True)
DATABASE_URL: Final = Kind(
    "text", lambda text: None if text == EMBEDDED else read_conninfo(text), is_secret=True
)
CHECKS_URL: Final = Kind(
    "text",
    read_conninfo,
    "needs `DATABASE_URL`; several hosts, separated by commas",
    is_secret=True,
)
POOLER_URL: Final = Kind("text", read_conninfo, "needs `DATABASE_URL`", is_secret=True)
URL: Final = Kind("address", _read_url, "http or https")
OAUTH_RESOURCE: Final = Kind("address", _read_resource, "https; http on loopback")
ORIGIN: Final = Kind("address", _read_origin, "http or https, a host, maybe a port")
KEY_PREFIX: Final = Kind("text", read_key_prefix, "2 to 16 of `a-z0-9`")
API_KEY_HEADER: Final = Kind("text", _read_api_key_header, "the name of a header")
IMPORTED_KEY_PATTERN: Final = Kind(
    "text", read_key_pattern, f"a regular expression, at most {LONGEST_PATTERN} characters"
)
AUDIENCES: Final = several(str, "separated by commas")
CLAIM: Final = Kind("text", _read_claim, "the name of a claim")
ROLE_MAP: Final = Kind("text", _read_role_map, "`theirs=ours`, separated by commas")
DIRECTORIES: Final = several(_read_directory, "ids, or `*`")
OPERATOR_USERS: Final = several(_read_operator, "separated by commas")
PRODUCT_NAME: Final = Kind("text", _read_product_name, f"at most {LONGEST_NAME} characters")
PRODUCT_LOGO: Final = Kind(
    "path",
    partial(_read_file, parse=_parse_logo, most=MOST_LOGO_BYTES),
    f"a PNG of at most {MOST_LOGO_BYTES // 1024} KiB",
)
PRODUCT_DOCS_URL: Final = Kind("address", _read_link, "http or https")
PRODUCT_SUPPORT: Final = Kind("address", _read_support, "a mail address, http or https")
PRODUCT_SAMPLE: Final = Kind(
    "path",
    partial(_read_file, parse=parse_samples, most=MOST_SAMPLE_BYTES),
    f"Markdown of at most {MOST_SAMPLE_BYTES // 1024} KiB",
)
PRODUCT_KEY_VARIABLE: Final = Kind("text", _read_variable, "at most 64 of `A-Za-z0-9_`")
PRODUCT_COLOR: Final = Kind("color", _read_accent, "`#rrggbb`")
OTLP_HEADERS: Final = Kind("text", str, "`name=value`, separated by commas")
FLAG: Final = Kind("flag", _read_flag, "true, false, 1, 0")
