"""How methods look beside their names: sign, colour and line, so that colour is never the only difference."""

from __future__ import annotations

from dataclasses import dataclass

from emssd.ui.palette import CHROME


@dataclass(frozen=True)
class MethodStyle:
    """Sign in menus; (light, dark) colour; dash pattern and symbol in charts, in Plotly's words."""

    mark: str
    colour: tuple[str, str]
    dash: str
    symbol: str


_GREY = CHROME["vanilla"]
METHOD_STYLES = {
    "greedy": MethodStyle("┅", CHROME["ink"], "5px,4px", "line-ew-open"),
    "greedy-ragged": MethodStyle("┄", CHROME["ink"], "1px,3px", "line-ew-open"),
    "vanilla": MethodStyle("□", _GREY, "7px,3px", "square-open"),
    "packed-input": MethodStyle("◧", _GREY, "2px,3px", "triangle-left"),
    "ragged-cache": MethodStyle("⬓", _GREY, "2px,3px", "triangle-down"),
    "ems-sd": MethodStyle("●", CHROME["brand"], "solid", "circle"),
}


def method_words(name: str, title: str) -> str:
    """The title behind its sign."""
    return f"{METHOD_STYLES[name].mark} {title}"
