"""Tools for testing on one's own machine: relaying the provider's events, and histories that are made up."""
