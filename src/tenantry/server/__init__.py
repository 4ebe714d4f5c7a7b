"""Below the routes: the HTTP protocol, dispatch, limits, errors, metrics and shutdown."""
