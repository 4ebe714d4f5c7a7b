"""An ASGI application without a framework whose callers are authenticated by tenantry.

pip install . uvicorn    (in a clone)
DATABASE_URL=... API_KEY_PEPPER=... uvicorn app:app --port 8000
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tenantry.asgi import AsgiAuthenticator, TenantryAsgiMiddleware, principal_of

Message = MutableMapping[str, Any]


async def projects(
    scope: Message, _receive: object, send: Callable[[Message], Awaitable[None]]
) -> None:
    principal = principal_of(scope)
    body = json.dumps({"tenant": principal.org_id, "caller": principal.id}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


app = TenantryAsgiMiddleware(
    projects, tenantry=AsgiAuthenticator.from_environment(), owns_lifespan=True
)
