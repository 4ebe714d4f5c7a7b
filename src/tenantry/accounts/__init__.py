"""Tenants, members and projects: use cases, and their SQL beside them."""
