"""Outbound events: publishing changes in their own transaction, and reading them in order."""
