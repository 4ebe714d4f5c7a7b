"""Django's settings with dj-stripe."""

import os

from django_settings import *  # noqa: F403

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "djstripe"]
ROOT_URLCONF = "dj_stripe.urls"
STRIPE_LIVE_MODE = True
STRIPE_LIVE_SECRET_KEY = os.environ["STRIPE_LIVE_SECRET_KEY"]
STRIPE_API_HOST = os.environ["STRIPE_API_HOST"]
DJSTRIPE_FOREIGN_KEY_TO_FIELD = "id"
