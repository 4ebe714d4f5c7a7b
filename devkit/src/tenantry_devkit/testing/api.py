"""The service's API, as tests have it called for them."""

from typing import Any

import httpx2

from tenantry_devkit.testing.errors import RefusedError
from tenantry_devkit.testing.masking import Credential, bearer


class Api:
    """Calls the service, and takes no refusal: raises `RefusedError`."""

    def __init__(self, http: httpx2.Client, operator_token: Credential) -> None:
        self._http = http
        self._operator_token = operator_token

    def call(self, method: str, path: str, credential: Credential, json: object = None) -> Any:  # noqa: ANN401
        """The body of a good answer, None where there is none."""
        response = self._http.request(method, f"/api/v1{path}", headers=bearer(credential), json=json)
        if not response.is_success:
            raise RefusedError(response)
        return response.json() if response.content else None

    def as_operator(self, method: str, path: str, json: object = None) -> Any:  # noqa: ANN401
        """The same with the operator's token."""
        return self.call(method, path, self._operator_token, json)
