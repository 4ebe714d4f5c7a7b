"""A project list behind API keys: Django REST framework with djangorestframework-api-key."""
