"""A FastAPI service whose callers are authenticated by tenantry.

pip install ".[fastapi]" uvicorn    (in a clone; from the first release on: "tenantry[fastapi]")
DATABASE_URL=... API_KEY_PEPPER=... uvicorn app:app --port 8000
"""

from typing import Annotated

from fastapi import Depends, FastAPI

from tenantry.asgi import AsgiAuthenticator, RequestPrincipal
from tenantry.asgi.fastapi import install, require

tenantry = AsgiAuthenticator.from_environment()
app = FastAPI(lifespan=tenantry.lifespan)
install(app, tenantry)

Reader = Annotated[RequestPrincipal, Depends(require("projects:read"))]
Writer = Annotated[RequestPrincipal, Depends(require("projects:write"))]


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/projects")
def list_projects(principal: Reader) -> dict[str, str]:
    return {
        "tenant": principal.org_id,
        "caller": principal.id,
        "plan": principal.effective_plan,
    }


@app.post("/projects", status_code=201)
def create_project(principal: Writer) -> dict[str, str]:
    return {"tenant": principal.org_id, "createdBy": principal.id}
