"""Django's settings for production."""

import os

from psycopg.conninfo import conninfo_to_dict

database = conninfo_to_dict(os.environ["DATABASE_URL"])

SECRET_KEY = os.environ["SECRET_KEY"]
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "djstripe"]
MIDDLEWARE = ["django.middleware.security.SecurityMiddleware", "django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "dj_stripe.urls"
WSGI_APPLICATION = "dj_stripe.wsgi.application"
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
STRIPE_LIVE_MODE = True
STRIPE_LIVE_SECRET_KEY = os.environ["STRIPE_LIVE_SECRET_KEY"]
STRIPE_API_HOST = os.environ["STRIPE_API_HOST"]
DJSTRIPE_FOREIGN_KEY_TO_FIELD = "id"
