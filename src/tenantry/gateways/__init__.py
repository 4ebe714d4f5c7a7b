"""The outside world: the payment provider, the identity provider, mail."""
