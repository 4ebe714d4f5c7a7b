"""Who may ask."""

from rest_framework_api_key.permissions import BaseHasAPIKey

from .models import TenantAPIKey


class HasTenantAPIKey(BaseHasAPIKey):
    """Lets in who has an API key of a tenant."""

    model = TenantAPIKey
