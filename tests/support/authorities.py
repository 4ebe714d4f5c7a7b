"""One certificate authority instead of the system's, whose hundreds take 25 ms to load: each client
that a test makes loads them, and none meets a certificate of theirs.
"""

import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Final

_END: Final = "-----END CERTIFICATE-----\n"


def one_authority() -> Mapping[str, str]:
    """Return the variable that names a file with one authority; none if the system has no file."""
    system = ssl.get_default_verify_paths().openssl_cafile
    return {"SSL_CERT_FILE": _first_of(system).name} if Path(system).is_file() else {}


@contextmanager
def trusting_one_authority() -> Iterator[None]:
    """Let clients of this process load one authority during the block."""
    before = os.environ.copy()
    os.environ.update(one_authority())
    try:
        yield
    finally:
        os.environ.pop("SSL_CERT_FILE", None)
        os.environ.update(before)


@cache
def _first_of(system: str) -> IO[str]:
    file = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115  # deleted with the process
    first, end, _ = Path(system).read_text("utf-8").partition(_END)
    file.write(first + end)
    file.flush()
    return file
