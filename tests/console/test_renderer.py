"""Escaping: whatever a template inserts becomes text."""

from __future__ import annotations

from typing import Any

import jinja2
import markupsafe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.console.renderer import Renderer, escape

VALUES = (
    st.text()
    | st.text(st.sampled_from("&<>\"'x;#4"))
    | st.integers()
    | st.none()
    | st.booleans()
    | st.lists(st.text(st.sampled_from("<&x")), max_size=3)
    | st.text(st.sampled_from("<&x")).map(markupsafe.Markup)
)
FORMS = (
    "{{ value }}",
    "{{ value|string }}",
    "{{ '' ~ value }}",
    "{% set kept %}{{ value }}{% endset %}{{ kept }}",
    "{% macro part(item) %}{{ item }}{% endmacro %}{{ part(value) }}",
    "{% for item in [value] %}{{ item }}{% endfor %}",
)


@given(value=VALUES)
def test_values_are_escaped_as_markupsafe_does(value: Any) -> None:
    """N3: the escape function returns what `markupsafe.escape` returns."""
    assert escape(value) == str(markupsafe.escape(value))


@pytest.mark.parametrize("form", FORMS)
@given(value=VALUES)
def test_templates_escape_in_every_form(form: str, value: Any) -> None:
    """N3: a template of the console renders what plain Jinja2 renders with escaping on."""
    plain = jinja2.Environment(autoescape=True).from_string(form)
    own = Renderer()._environment.from_string(form)
    assert own.render(value=value) == plain.render(value=value)
