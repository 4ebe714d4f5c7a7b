"""Checks of the settings, connections and the database."""
