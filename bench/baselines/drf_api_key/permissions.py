"""The API's permission."""

from rest_framework_api_key.permissions import BaseHasAPIKey

from .models import TenantAPIKey


class HasTenantAPIKey(BaseHasAPIKey):
    """Requires the API key of a tenant."""

    model = TenantAPIKey
