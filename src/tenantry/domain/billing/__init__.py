"""Billing: what a tenant's events say about its plan and subscription status."""
