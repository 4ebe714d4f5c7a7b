"""The outside world: the payment provider, identity providers, the mail server."""
