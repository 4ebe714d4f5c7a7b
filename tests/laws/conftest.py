"""How Hypothesis runs: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("tenantry", deadline=None)
settings.load_profile("tenantry")
