"""tenantry: the account layer of a multi-tenant API, as one service."""

from tenantry._version import __version__ as __version__
