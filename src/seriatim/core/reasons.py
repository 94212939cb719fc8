"""What an error of a user's code said, in words that may be kept."""

from __future__ import annotations

from seriatim.core.guard import DEFAULT, Scanned
from seriatim.core.values import text_flaw

_LONGEST = 500


def reason_of(error: BaseException) -> str:
    """Return an error's type and words, bounded, as every database can hold them; no secret."""
    name = type(error).__name__
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - it was written by a user
        said = "it does not say why"
    text = f"{name}: {said}"[:_LONGEST]
    if text_flaw(text) is not None:
        text = ascii(text)[1:-1][:_LONGEST]
    if DEFAULT.scan(Scanned(said, said)) is not None:
        return f"{name}: its words are not kept, they look like a secret"
    return text
