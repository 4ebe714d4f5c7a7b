"""What can go wrong with the service of a test session."""

import httpx2


class StartError(RuntimeError):
    """The service did not start; the message says why, with the end of its log."""


class RefusedError(RuntimeError):
    """The service refused what was asked of it on a test's behalf; ``response`` is its answer."""

    def __init__(self, response: httpx2.Response) -> None:
        request = response.request
        super().__init__(f"{request.method} {request.url.path}: {response.status_code} {response.text}")
        self.response = response


class MailError(AssertionError):
    """A mail that was asked for did not arrive in time, or was given up."""
