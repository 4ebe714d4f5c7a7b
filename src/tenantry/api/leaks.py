"""The route that takes reports of leaked API keys."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from tenantry.api.author import unknown_author
from tenantry.api.guards import AnyRequest
from tenantry.auth.leak_reports import EndedKey, LeakService

PATH: Final = "/api/v1/api-keys/report-leak"
_LONGEST: Final = 1000


class LeakReport(msgspec.Struct, forbid_unknown_fields=True):
    """A key that was found where it should not be."""

    secret: Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST)]


def leak_routes(leaks: LeakService) -> Sequence[HTTPRouteHandler]:
    """The route for whoever finds a key. It asks for no credential: the finder has none but the key."""

    @post(PATH, status_code=200, opt={"public": True}, summary="Report a leaked API key")
    async def report_leaked_key(request: AnyRequest, data: JSONBody[LeakReport]) -> Response[EndedKey]:
        ended = await leaks.report(unknown_author(request), data.secret)
        return Response(ended, headers={"Cache-Control": "no-store"})

    return [report_leaked_key]
