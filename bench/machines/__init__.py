"""Several machines, each a network namespace: what becomes of the service when the network or a host fails."""
