"""The errors of the log as responses."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse

from seriatim import IdempotencyConflict, SeriatimError


class SeriatimErrors:
    """A middleware that answers 503 if the same request may succeed later."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Pass the request on."""
        return self._get_response(request)

    def process_exception(self, _: HttpRequest, error: Exception) -> JsonResponse | None:
        """Translate an error of the log; leave all others to Django."""
        if not isinstance(error, SeriatimError):
            return None
        status = 409 if isinstance(error, IdempotencyConflict) else 503 if error.retryable else 400
        headers = {"Retry-After": "1"} if error.retryable else {}
        body = {"code": error.code, "message": error.message}
        return JsonResponse(body, status=status, headers=headers)
