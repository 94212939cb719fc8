"""What limits the figures that fall short, as far as it is known; printed under them."""

LIMITS: dict[str, str] = {}  # the beginning of a figure's name, and what holds it back


def what_limits(name: str) -> str | None:
    """Return what is known to hold a figure back, by the longest beginning that fits."""
    fitting = [begin for begin in LIMITS if name.startswith(begin)]
    return LIMITS[max(fitting, key=len)] if fitting else None
