"""A Flask service whose callers are authenticated by tenantry.

pip install ".[flask]" gunicorn    (in a clone; from the first release on: "tenantry[flask]")
DATABASE_URL=... API_KEY_PEPPER=... gunicorn --threads 8 --bind 127.0.0.1:8000 app:app
"""

from flask import Flask, g

from tenantry.wsgi import WsgiAuthenticator
from tenantry.wsgi.flask import install, requires

app = Flask(__name__)
install(app, WsgiAuthenticator.from_environment())


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/projects")
@requires("projects:read")
def list_projects() -> dict[str, str]:
    caller = g.principal
    return {"tenant": caller.org_id, "caller": caller.id, "plan": caller.effective_plan}


@app.post("/projects")
@requires("projects:write")
def create_project() -> tuple[dict[str, str], int]:
    return {"tenant": g.principal.org_id, "createdBy": g.principal.id}, 201
