# Generated from _async/__init__.py by sdk/make_sync.py: edit that file.
"""The synchronous client; the synchronous one is made from it."""
