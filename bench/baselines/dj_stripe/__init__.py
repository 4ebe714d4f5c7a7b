"""The provider's webhook with dj-stripe, which keeps a copy of the provider's objects in Django's
models.
"""
