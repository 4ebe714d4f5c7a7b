"""Nothing that was acknowledged is lost: the service under load, and everything that it stands on breaking."""
