"""Faults under load: what the service acknowledges survives them."""
