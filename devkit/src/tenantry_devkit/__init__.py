"""The development kit of tenantry. Never install it in production: its identity provider signs in
every client.
"""
