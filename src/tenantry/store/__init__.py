"""SQL: named statements beside the functions that run them. A tenant's data is always asked for by org id."""
