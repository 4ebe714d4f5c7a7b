"""Signing in at the identity provider: in a browser (RFC 8252, RFC 7636), or with a code (RFC 8628)."""
