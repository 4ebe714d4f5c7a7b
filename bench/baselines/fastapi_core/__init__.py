"""The same endpoints lean: FastAPI with SQLAlchemy Core, and as few statements as the work
needs.
"""
