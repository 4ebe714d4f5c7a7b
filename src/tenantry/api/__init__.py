"""HTTP for programs: one module of routes for each subject."""
