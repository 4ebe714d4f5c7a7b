"""Who belongs to a tenant: its members, a user's own memberships, and how both change."""
