"""Disturbances of a database that Patroni manages, on machines that are network namespaces."""
