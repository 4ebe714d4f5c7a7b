"""``tenantry demo``: the service with PostgreSQL, an identity provider, a mail inbox and a payment
provider.
"""
