"""A WSGI application without a framework whose callers are authenticated by tenantry.

pip install . gunicorn    (in a clone)
DATABASE_URL=... API_KEY_PEPPER=... gunicorn --threads 8 --bind 127.0.0.1:8000 app:app
"""

import json
from wsgiref.types import StartResponse, WSGIEnvironment

from tenantry.wsgi import TenantryWsgiMiddleware, WsgiAuthenticator, principal_of


def projects(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    principal = principal_of(environ)
    body = json.dumps({"tenant": principal.org_id, "caller": principal.id}).encode()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [body]


app = TenantryWsgiMiddleware(projects, tenantry=WsgiAuthenticator.from_environment())
