"""What all endpoints share: reading the parameters, and answers that nobody keeps."""

from typing import Any, Final

from litestar import HttpMethod, Request

from tenantry_devkit.identity_provider.grants import OAuthError
from tenantry_devkit.identity_provider.parameters import read_parameters

NO_STORE: Final = {"Cache-Control": "no-store", "Pragma": "no-cache"}
AnyRequest = Request[Any, Any, Any]


async def parameters_of(request: AnyRequest) -> dict[str, str]:
    """The parameters in the query, or in the form of any other request than GET. Raises `OAuthError`."""
    if request.method == HttpMethod.GET:
        return read_parameters(request.scope["query_string"])
    if request.content_type[0] != "application/x-www-form-urlencoded":
        raise OAuthError("invalid_request", "The body must be application/x-www-form-urlencoded.")
    return read_parameters(await request.body())


def comes_from_elsewhere(request: AnyRequest) -> bool:
    """Whether a page of another site has sent it."""
    return request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}
