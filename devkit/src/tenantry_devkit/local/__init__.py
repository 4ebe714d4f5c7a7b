"""Local testing: `tenantry listen` relays the provider's events, and `tenantry trigger` creates
events.
"""
