"""Authentication in an application's process, for every kind of application: `asgi` and `wsgi` are
built on it.
"""
