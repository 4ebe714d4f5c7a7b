"""The provider's HTTP API."""
