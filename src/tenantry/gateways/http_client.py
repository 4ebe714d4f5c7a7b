"""The HTTP client for the outside world."""

from typing import Final

import httpx2

_DIRECT: Final[dict[str, httpx2.AsyncBaseTransport | None]] = {
    "all://127.0.0.1": None,
    "all://localhost": None,
    "all://[::1]": None,
}


def new_http_client(timeout: float = 5.0) -> httpx2.AsyncClient:
    """A client that follows no redirects; ``timeout`` is for each step, in seconds. Whoever asks for it closes it.

    Loopback addresses are asked directly, whatever proxy the environment names for the rest.
    """
    return httpx2.AsyncClient(timeout=timeout, mounts=_DIRECT, follow_redirects=False)
