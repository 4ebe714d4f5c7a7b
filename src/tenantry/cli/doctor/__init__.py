"""``tenantry doctor``: the findings of `tenantry.installation`, and checks of this host."""
