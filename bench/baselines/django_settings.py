"""Django's production settings that both apps share."""

import os

from psycopg.conninfo import conninfo_to_dict

database = conninfo_to_dict(os.environ["DATABASE_URL"])

SECRET_KEY = os.environ["SECRET_KEY"]
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database["dbname"],
        "USER": database.get("user", ""),
        "PASSWORD": database.get("password", ""),
        "HOST": database.get("host", ""),
        "PORT": database.get("port", ""),
        "CONN_MAX_AGE": None,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
