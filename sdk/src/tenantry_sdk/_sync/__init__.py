# Made from _async/__init__.py by sdk/make_sync.py: change that one.
"""The synchronous client; the synchronous one is made from it."""
