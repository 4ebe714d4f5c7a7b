"""Authenticates requests; API keys, sessions, rate limits and leak reports, with their SQL."""
