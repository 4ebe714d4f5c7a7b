"""How Hypothesis runs: a busy machine is no failure. `tests/system/test_laws.py` tries more examples of the laws."""

from hypothesis import settings

settings.register_profile("tenantry", deadline=None, max_examples=50)
settings.load_profile("tenantry")
