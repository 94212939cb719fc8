"""The routes of the shop."""

from django.urls import path

from shop.views import OrderView, report_health

urlpatterns = [
    path("orders/<order_id>", OrderView.as_view()),
    path("health", report_health),
]
