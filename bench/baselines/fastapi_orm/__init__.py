"""The endpoints that most teams write: FastAPI with SQLAlchemy's asynchronous ORM."""
