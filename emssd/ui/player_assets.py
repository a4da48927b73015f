"""The player's scripts and styles as text: the app mounts them, the stand-alone page carries them inside."""

from __future__ import annotations

from pathlib import Path

from emssd.ui.palette import css_variables

UI_ASSETS = Path(__file__).resolve().parents[2] / "assets" / "ui"

# Each file uses names of the files before it.
PARTS = (
    "player_cells.js",
    "player_clock.js",
    "player_describe.js",
    "player_draw.js",
    "player_section.js",
    "player_small.js",
    "player_batch.js",
    "player_links.js",
    "player_shell.js",
    "player_transport.js",
    "player_card.js",
    "player_panels.js",
    "player_focus.js",
    "player_keys.js",
    "player_lesson.js",
    "player.js",
    "player_png.js",
)

STYLES = ("player.css", "player_panes.css", "player_lesson.css", "origins.css")

ROOT = (
    '<div class="player" data-testid="player" tabindex="0" role="application"'
    ' aria-label="Step player: arrow keys change the step, Space plays"></div>'
)
"""The element that the player fills."""


def read_asset(name: str) -> str:
    """Text of a file in assets/ui."""
    return (UI_ASSETS / name).read_text(encoding="utf-8")


def script(entry: str) -> str:
    """The player as one script.

    Args:
        entry: the file that starts it: "entry_streamlit.js" or "entry_page.js".
    """
    return "\n".join(read_asset(name) for name in (*PARTS, entry))


def styles() -> str:
    """The player's styles, for a shadow root as well as for a page of its own."""
    sheets = "\n".join(read_asset(name) for name in STYLES)
    return f":host, :root {{ {css_variables()} }}\n{sheets}"
