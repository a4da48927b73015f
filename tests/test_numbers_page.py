"""The page Numbers: what it computes, its address, its controls, and how fast it answers."""

from __future__ import annotations

from tests.app_pages import open_app, texts, warnings

NUMBERS = "numbers"


def test_the_page_opens_with_charts_and_answers():
    page = open_app(NUMBERS)
    assert not warnings(page)
    assert len(page.get("plotly_chart")) >= 4
    assert all(plot.proto.alt for plot in page.get("plotly_chart"))
    assert "From batch 12 on." in texts(page)
