"""tenantry: the account layer of a multi-tenant API, as one service."""

__version__ = "0.1.0"
