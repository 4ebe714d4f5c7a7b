"""The dashboard: the pages for users of a tenant. The server renders them, and they work without
JavaScript.
"""
