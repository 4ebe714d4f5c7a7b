"""A mail server that keeps every mail, and its inbox."""
