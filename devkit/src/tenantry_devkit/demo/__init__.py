"""What `make run` adds for development, on loopback only: an identity provider and a mail inbox."""
