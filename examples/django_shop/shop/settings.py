"""The settings of the project; it keeps everything in the log and its read model."""

import os

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "for the examples only")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
INSTALLED_APPS = ["shop"]
MIDDLEWARE = ["shop.errors.SeriatimErrors"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True

SHOP_LOG = os.environ.get("SHOP_LOG", "sqlite:///shop.db")
