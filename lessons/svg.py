"""Cells, patterns, legend and frame of the lessons' pictures, as SVG text.

Every picture brings its own ground, white or on dark pages dark, and every cell has a letter and a pattern, so that it
is read without colour. The palette is the player's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from emssd.token_text import visible
from emssd.ui.palette import CHROME, PHASES

CELL_WIDTH, CELL_HEIGHT = 50, 34
MARGIN = 16
LETTERS = 6
NARROW = 30
INK, MUTED, TEXT = CHROME["ink"][0], CHROME["muted"][0], CHROME["text"][0]
BRAND, WASTE = CHROME["brand"][0], CHROME["waste"][0]
FONT = "'Source Sans 3','Segoe UI',Helvetica,Arial,sans-serif"
LEGEND_WIDTH = 128
COLOUR = re.compile(r'(fill|stroke)="(#[0-9A-F]{6})"')
DARK = {CHROME[name][0]: CHROME[name][1] for name in ("panel", "text", "muted", "ink", "hairline", "control", "brand")}
for _look in PHASES.values():
    DARK = {_look.solid[0]: _look.solid[1], **dict(zip(_look.light, _look.dark, strict=True)), **DARK}


def text(
    x: float, y: float, words: str, size: float = 12, anchor: str = "start", fill: str = TEXT, more: str = ""
) -> str:
    """Words at a point; `anchor` is start, middle or end."""
    place = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}"'
    return f"<text {place}{' ' + more if more else ''}>{escape(words)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, colour: str = INK, width: float = 1.3, dash: str = "") -> str:
    """A straight line."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{colour}" stroke-width="{width:g}" fill="none"{dashed}/>'


def _shortened(words: str, letters: int = LETTERS) -> str:
    words = visible(words).strip() or "␣"
    return words if len(words) <= letters else words[: letters - 1] + "…"


def cell(x: float, y: float, phase: str, words: str = "", width: int = CELL_WIDTH) -> str:
    """One cell: fill, pattern, outline, its letter in the corner, a token's text; a narrow one has the letter only."""
    look = PHASES[phase]
    fill, stroke, ink = look.light
    box = f'x="{x + 1:g}" y="{y:g}" width="{width - 2}" height="{CELL_HEIGHT}" rx="4"'
    parts = [f'<rect {box} fill="{fill or "#FFFFFF"}"/>']
    if look.pattern == "band":
        band = f'x="{x + 1:g}" y="{y + CELL_HEIGHT - 4:g}" width="{width - 2}" height="4"'
        parts.append(f'<rect {band} fill="{look.solid[0]}"/>')
    elif look.pattern:
        parts.append(f'<rect {box} fill="url(#{phase}-pattern)"/>')
    dash = ' stroke-dasharray="3 2"' if look.dash else ""
    parts.append(f'<rect {box} fill="none" stroke="{stroke}"{dash}/>')
    halo = f'paint-order="stroke" stroke="{fill or "#FFFFFF"}" stroke-width="4" stroke-linejoin="round"'
    letter = stroke if phase != "bonus" else ink
    if width < NARROW:
        parts.append(text(x + width / 2, y + 21, look.glyph, 11, "middle", letter, f'font-weight="700" {halo}'))
        return "".join(parts)
    if look.glyph:
        parts.append(text(x + 5, y + 11, look.glyph, 9, fill=letter, more=f'font-weight="700" {halo}'))
    if words:
        letters, size = (LETTERS, 12) if width == CELL_WIDTH else (width // 6 - 1, 11)
        parts.append(text(x + width / 2, y + 25, _shortened(words, letters), size, "middle", ink, halo))
    return "".join(parts)


def patterns(phases: Sequence[str]) -> str:
    """The hatches of some phases."""
    shapes = {"rows": "M0 3H6", "up": "M-1 7L7 -1", "down": "M-1 -1L7 7"}
    parts = []
    for name in phases:
        look = PHASES[name]
        if look.pattern in shapes:
            drawn = (
                f'<path d="{shapes[look.pattern]}" stroke="{look.light[1]}" stroke-width="1.2" stroke-opacity=".45"/>'
            )
        elif look.pattern == "dots":
            drawn = f'<circle cx="3" cy="3" r=".9" fill="{look.light[1]}"/>'
        else:
            continue
        tile = 'width="6" height="6" patternUnits="userSpaceOnUse"'
        parts.append(f'<pattern id="{name}-pattern" {tile}>{drawn}</pattern>')
    return "<defs>" + "".join(parts) + "</defs>" if parts else ""


def legend(x: float, y: float, phases: Sequence[str], width: float) -> tuple[str, float]:
    """The phases that occur, each with its cell and its word; and the height that this takes."""
    columns = max(1, int(width // LEGEND_WIDTH))
    parts = []
    for number, name in enumerate(phases):
        left, top = x + number % columns * LEGEND_WIDTH, y + number // columns * 24
        look = PHASES[name]
        fill, stroke, ink = look.light
        box = f'x="{left:g}" y="{top:g}" width="18" height="16" rx="3"'
        dash = ' stroke-dasharray="3 2"' if look.dash else ""
        parts.append(f'<rect {box} fill="{fill or "#FFFFFF"}" stroke="{stroke}"{dash}/>')
        if look.pattern not in ("", "band"):
            parts.append(f'<rect {box} fill="url(#{name}-pattern)"/>')
        halo = f'font-weight="700" paint-order="stroke" stroke="{fill or "#FFFFFF"}" stroke-width="3"'
        parts.append(text(left + 9, top + 11.5, look.glyph, 10, "middle", ink, halo))
        parts.append(text(left + 24, top + 12.5, look.word, 12, fill=MUTED))
    return "".join(parts), -(-len(phases) // columns) * 24.0


def flag(x: float, y: float, number: int) -> str:
    """A cursor's flag with its slot number, centred above the point."""
    words = str(number)
    width = 8 + 7 * len(words)
    box = f'<rect x="{x - width / 2:g}" y="{y - 15:g}" width="{width}" height="15" rx="3" fill="{INK}"/>'
    return box + text(x, y - 3.5, words, 11, "middle", "#FFFFFF", 'font-weight="700"')


def page(width: float, height: float, title: str, body: str, phases: Sequence[str]) -> str:
    """The whole file."""
    frame = (
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8" fill="#FFFFFF" stroke="#D3D7DE"/>'
    )
    head = (
        f'xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    )
    drawn = f"{patterns(phases)}\n{frame}\n{body}"
    return (
        f'<svg {head} role="img" font-family="{FONT}">\n<title>{escape(title)}</title>\n'
        f"{dark_style(drawn)}\n{drawn}\n</svg>\n"
    )


def dark_style(drawn: str) -> str:
    """What the colours of a drawing become on a dark page. Words on a bright cell stay as they are there."""
    rules = [
        f'[{name}="{light}"]{{{name}:{DARK[light]}}}'
        for name, light in sorted(set(COLOUR.findall(drawn)))
        if DARK.get(light, light) != light
    ]
    (own, _, words), (_, line, _) = PHASES["bonus"].dark, PHASES["pending"].light
    rules += [
        f'rect[fill="{own}"]{{fill:{own}}}',
        f'text[stroke="{own}"]{{fill:{words};stroke:{own}}}',
        f'text[fill="{line}"]{{fill:{PHASES["pending"].dark[2]}}}',
    ]
    return f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
