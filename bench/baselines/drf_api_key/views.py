"""A tenant's projects."""

from django.db.models import QuerySet
from django.urls import path
from rest_framework.generics import ListAPIView
from rest_framework.pagination import CursorPagination
from rest_framework.serializers import ModelSerializer

from .models import Project, TenantAPIKey


class ProjectSerializer(ModelSerializer):
    """A project as the API shows it."""

    class Meta:
        """What is shown."""

        model = Project
        fields = ("id", "tenant_id", "name", "description", "created_at", "updated_at")


class ProjectPages(CursorPagination):
    """Pages of 20, the newest first."""

    page_size = 20
    ordering = "-created_at"


class ProjectList(ListAPIView):
    """The projects of the tenant that the caller's key belongs to."""

    serializer_class = ProjectSerializer
    pagination_class = ProjectPages

    def get_queryset(self) -> QuerySet[Project]:
        """Look the key up again, because the permission does not pass it on."""
        key = self.request.META["HTTP_AUTHORIZATION"].split()[1]
        api_key = TenantAPIKey.objects.get_from_key(key)
        return Project.objects.filter(tenant_id=api_key.tenant_id)


urlpatterns = [path("projects", ProjectList.as_view())]
