"""HTTP: routes, guards, problem details, and the front that every request comes through."""
