"""Why a connection to PostgreSQL fails, in words."""

import re
from typing import Final

# Messages of PostgreSQL's client, and ours, because its messages may contain parts of a malformed
# connection string.
_TROUBLES: Final = {
    "password authentication failed": "the user or password is rejected",
    "no password supplied": "the server requires a password",
    "failed to resolve host|could not translate host name": "the host name is not known",
    r"pg_hba\.conf": "the server accepts no connection of this user from here (pg_hba.conf)",
    "certificate|SSL": "the TLS handshake fails",
    "does not exist": "the database or the user does not exist",
    "too many|remaining connection slots": "the server has no connection free",
    "refused|No such file": "no server listens at that address",
    "starting up": "the server is starting up",
}


def trouble_of(cause: BaseException | None) -> str:
    """Return why a connection failed; the text has no part of the connection string."""
    if isinstance(cause, TimeoutError):
        return "the server does not answer in time"
    found = (ours for theirs, ours in _TROUBLES.items() if re.search(theirs, str(cause)))
    return next(found, "the connection is refused or breaks off")
