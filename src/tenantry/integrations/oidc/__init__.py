"""The identity provider: who a bearer token was issued to, and the provider's public keys that
prove it.
"""
