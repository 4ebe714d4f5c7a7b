"""Tenants, their API keys and their projects."""

from django.db import models
from rest_framework_api_key.models import AbstractAPIKey


class Tenant(models.Model):
    """A customer of the product."""

    id = models.CharField(max_length=64, primary_key=True)
    name = models.CharField(max_length=200)

    def __str__(self) -> str:
        return self.name


class TenantAPIKey(AbstractAPIKey):
    """A credential of a tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")


class Project(models.Model):
    """A project of a tenant."""

    id = models.CharField(max_length=64, primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="projects")
    name = models.CharField(max_length=200)
    description = models.TextField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        """The newest first, by an index."""

        indexes = (models.Index(fields=["tenant", "-created_at"]),)

    def __str__(self) -> str:
        return self.name
