"""The pages of the recipes show the code of the examples, which the other tests here run."""

import pytest

from tests.docs.pages import Block, blocks, read

PAGES = ("docs/howto/fastapi.md", "docs/howto/django.md")
SHOWN = [
    (page, block)
    for page in PAGES
    for block in blocks(read(page))
    if block.language in ("py", "python")
]


@pytest.mark.parametrize(
    ("page", "block"), SHOWN, ids=[f"{page}-{block.line}" for page, block in SHOWN]
)
def test_shown_code_is_that_of_the_example(page: str, block: Block) -> None:
    """I10: each block is a part of the file that it names."""
    [source] = [word.removeprefix("source=") for word in block.words if "source=" in word]

    assert block.text in read(source)


def test_every_page_shows_code() -> None:
    """I10: both recipes have several parts."""
    assert {page for page, _ in SHOWN} == set(PAGES)
    assert len(SHOWN) >= 10
