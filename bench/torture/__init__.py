"""Torture a running deployment, and check what the service promises."""
