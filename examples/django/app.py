"""A Django service whose callers are authenticated by tenantry, in one file.

pip install ".[django]" gunicorn    (in a clone; from the first release on: "tenantry[django]")
DATABASE_URL=... API_KEY_PEPPER=... gunicorn --threads 8 --bind 127.0.0.1:8000 app:application
"""

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from tenantry.wsgi.django import AuthenticatedRequest, requires

settings.configure(
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    MIDDLEWARE=["tenantry.wsgi.django.TenantryDjangoMiddleware"],
    ROOT_URLCONF=__name__,
    TENANTRY={"PUBLIC": ["/health"]},  # everything else needs a credential
)


def health(_request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


class Projects(View):
    @method_decorator(requires("projects:read"))
    def get(self, request: AuthenticatedRequest) -> JsonResponse:
        caller = request.tenantry
        return JsonResponse(
            {"tenant": caller.org_id, "caller": caller.id, "plan": caller.effective_plan}
        )

    @method_decorator(requires("projects:write"))
    def post(self, request: AuthenticatedRequest) -> JsonResponse:
        return JsonResponse(
            {"tenant": request.tenantry.org_id, "createdBy": request.tenantry.id}, status=201
        )


urlpatterns = [path("health", health), path("projects", Projects.as_view())]
application = get_wsgi_application()
