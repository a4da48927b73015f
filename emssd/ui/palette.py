"""One table of phases and methods: colour, outline, letter, pattern and words. The page and the player both read it.

Colour is never the only channel: every phase has its own letter, and a pattern tells apart what hues would not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Phase:
    """How one cell state looks.

    Args:
        glyph: the letter in the cell.
        word: its name in the legend.
        light, dark: (fill, line, text) colours; an empty fill is hollow.
        solid: (light, dark) colour of cells too small for a fill and a line; empty: outline only.
        pattern: "", "band", "rows", "up", "down" or "dots".
        dash: whether the outline is dashed.
    """

    glyph: str
    word: str
    light: tuple[str, str, str]
    dark: tuple[str, str, str]
    solid: tuple[str, str]
    pattern: str = ""
    dash: bool = False


PHASES: dict[str, Phase] = {
    "prompt": Phase(
        "P", "prompt", ("#E4F2FC", "#3A8FC4", "#1B3A4D"), ("#15334A", "#56B4E9", "#D6ECFA"), ("#56B4E9",) * 2, "band"
    ),
    "plain": Phase(
        "T",
        "target, no draft",
        ("#DCEAF5", "#0072B2", "#0B2E45"),
        ("#16304A", "#5DAEE3", "#DCEBFA"),
        ("#0072B2",) * 2,
        "rows",
    ),
    "pending": Phase(
        "N",
        "next (pending)",
        ("#F6EC7A", "#857A00", "#332F00"),
        ("#F0E442", "#F0E442", "#2C2800"),
        ("#F0E442",) * 2,
    ),
    "draft": Phase(
        "D",
        "draft",
        ("#FFF8E6", "#A87400", "#4A3500"),
        ("#2E2714", "#E0A63A", "#F6E4BD"),
        ("#E69F00",) * 2,
        dash=True,
    ),
    "accepted": Phase(
        "A", "accepted", ("#D6F0E6", "#008A64", "#0B3B2E"), ("#0E3A2E", "#2CC295", "#D3F5E8"), ("#009E73",) * 2
    ),
    "recovered": Phase(
        "R", "recovered", ("#DCEAF5", "#0072B2", "#0B2E45"), ("#12304B", "#5DAEE3", "#DCEBFA"), ("#0072B2",) * 2, "up"
    ),
    "bonus": Phase(
        "B", "bonus", ("#0072B2", "#005A8F", "#FFFFFF"), ("#0072B2", "#5DAEE3", "#FFFFFF"), ("#004C7A", "#9AD0F5")
    ),
    "rejected": Phase(
        "X", "rejected", ("#FDEBDF", "#C25200", "#5A2600"), ("#3A2012", "#F08A45", "#F9D3BA"), ("#D55E00",) * 2, "down"
    ),
    "hole": Phase("H", "hole", ("", "#6F7683", "#5F6672"), ("", "#8791A1", "#A3AAB8"), ("", ""), "up"),
    "pad": Phase("–", "pad", ("", "#8A909C", "#5F6672"), ("", "#6E7888", "#A3AAB8"), ("", ""), "dots", dash=True),
    "free": Phase("", "free", ("", "#E3E6EB", "#5F6672"), ("", "#28303D", "#A3AAB8"), ("", "")),
}

CUT = Phase(
    "C", "cut off: confirmed, thrown away", PHASES["accepted"].light, PHASES["accepted"].dark, ("#009E73",) * 2, "down"
)
"""A draft that was confirmed and then cut to what the slowest row gained, in lesson 4 alone: as if kept, hatched."""

ORIGINS = {
    "accepted": "draft kept",
    "recovered": "target’s own, after a rejection",
    "bonus": "extra token, all drafts kept",
    "plain": "target’s own, no draft",
}

LAYOUT_WORDS = {
    "greedy": "padded cache, no drafts",
    "greedy-ragged": "ragged cache, no drafts",
    "vanilla": "padded cache, padded inputs",
    "packed-input": "padded cache, packed inputs",
    "ragged-cache": "ragged cache, padded inputs",
    "ems-sd": "ragged cache, packed inputs",
}

CHROME = {
    "page": ("#FFFFFF", "#0E1117"),
    "panel": ("#FFFFFF", "#131822"),
    "sunk": ("#F6F7F9", "#191F2A"),
    "text": ("#262A33", "#E7E9EE"),
    "muted": ("#5F6672", "#A3AAB8"),
    "faint": ("#6D7480", "#8A92A1"),
    "ink": ("#12151B", "#F7F8FA"),
    "hairline": ("#E6E8EC", "#232A36"),
    "control": ("#D3D7DE", "#343C4A"),
    "brand": ("#4B4ACF", "#9A9BFF"),
    "brand-tint": ("#EEEEFB", "#22233F"),
    "agree": ("#00795A", "#4CD6A9"),
    "agree-tint": ("#E1F4ED", "#0F2E27"),
    "differ": ("#B64A00", "#FF9A57"),
    "differ-tint": ("#FCEBDF", "#3A2113"),
    "vanilla": ("#5F6672", "#B7BECB"),
    "waste": ("#D55E00", "#F08A45"),
    "useful": ("#5F6672", "#98A1B2"),
}


def css_variables() -> str:
    """The colours as CSS variables that follow the page's light or dark scheme."""
    lines = [f"--e-{name}: light-dark({light}, {dark});" for name, (light, dark) in CHROME.items()]
    for name, phase in PHASES.items():
        for part, light, dark in zip(("fill", "line", "text"), phase.light, phase.dark, strict=True):
            lines.append(f"--e-{name}-{part}: light-dark({light or 'transparent'}, {dark or 'transparent'});")
    return "\n".join(lines)


def player_palette() -> dict[str, Any]:
    """The tables as plain data for the player."""
    return {"phases": {name: asdict(phase) for name, phase in {**PHASES, "cut": CUT}.items()}, "chrome": CHROME}
