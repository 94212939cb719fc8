"""URLs are displayed without secrets."""

import pytest

from seriatim.factory import redact_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///app.db", "sqlite:///app.db"),
        ("memory:", "memory:"),
        (
            "postgresql://ann@db:5432/shop?schema=a%20b",
            "postgresql://ann@db:5432/shop?schema=a%20b",
        ),
        ("postgresql://ann:s3cret@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://:s3cret@db/shop", "postgresql://:***@db/shop"),
        (
            "postgresql://db/shop?user=ann&password=s3cret&schema=x",
            "postgresql://db/shop?user=ann&password=***&schema=x",
        ),
        ("postgresql://db/shop?sslmode=require", "postgresql://db/shop?sslmode=require"),
        ("postgresql://db/shop?p%61ssword=s3cret", "postgresql://db/shop?p%61ssword=***"),
        ("postgresql:///shop?PASSWORD=s3cret&a", "postgresql:///shop?PASSWORD=***&a"),
        ("postgresql://ann:s3/cret@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:s3?cret@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:s3[cret@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:s3#cret@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:s3@cret@db/shop", "postgresql://ann:***@db/shop"),
    ],
)
def test_passwords_are_redacted(url: str, shown: str) -> None:
    """K1: a password before the host or as an option is redacted; the rest is unchanged."""
    assert redact_url(url) == shown


@pytest.mark.parametrize(
    "option",
    ["password", "sslpassword", "passfile", "sslkey", "scram_client_key", "oauth_client_secret"],
)
def test_secret_options_are_redacted(option: str) -> None:
    """K1: options of libpq with a secret, or with the file of one, are redacted."""
    assert "s3cret" not in redact_url(f"postgresql://ann:s3cret@db/shop?{option}=%2Fs3cret&x=y")
