"""nginx and Caddy, really running with their examples, between a client and an application."""
