"""Disturbances of the network and of hosts, on several machines that are network namespaces."""
