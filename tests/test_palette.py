"""The colours can be told apart: by everyone, in light and dark, and never by hue alone."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from emssd.cells import STATES
from emssd.config import METHOD_TITLES
from emssd.ui.palette import CHROME, LAYOUT_WORDS, ORIGINS, PHASES, Phase, css_variables, player_palette

SCHEMES = {"light": 0, "dark": 1}
SIGHTS = {
    "full": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    # Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
SHOWN = [name for name in PHASES if name != "free"]  # an empty slot says nothing
COLOUR = re.compile("#[0-9A-F]{6}")


def linear(colour: str) -> list[float]:
    """sRGB hex -> linear RGB, 0..1."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]


def contrast(one: str, two: str) -> float:
    """WCAG 2 contrast ratio, 1..21."""
    light, dark = sorted(
        (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True)) for colour in (one, two)),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


def lab(colour: str, sight: str) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of a colour as somebody sees it."""
    rgb = linear(colour)
    seen = [min(max(sum(w * c for w, c in zip(row, rgb, strict=True)), 0.0), 1.0) for row in SIGHTS[sight]]
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(w * c for w, c in zip(row, seen, strict=True)) / w for row, w in zip(to_xyz, white, strict=True)]
    f = [value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def distance(one: str, two: str, sight: str) -> float:
    """CIE76 distance."""
    return sum((a - b) ** 2 for a, b in zip(lab(one, sight), lab(two, sight), strict=True)) ** 0.5


def parts(phase: Phase, scheme: str) -> tuple[str, str, str]:
    return getattr(phase, scheme)


def test_the_measures_know_known_values():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)
    assert distance("#000000", "#FFFFFF", "full") == pytest.approx(100, abs=0.1)
    assert distance("#FF0000", "#00FF00", "full") == pytest.approx(170.6, abs=0.5)
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for rows in SIGHTS.values() for row in rows)
    assert distance("#FF0000", "#00FF00", "deutan") < distance("#FF0000", "#00FF00", "full") / 2


def test_every_phase_has_its_own_letter_and_word():
    assert set(PHASES) == set(STATES)
    for name in ("glyph", "word"):
        values = [getattr(PHASES[state], name) for state in SHOWN]
        assert all(values)
        assert len(set(values)) == len(values)
    assert set(ORIGINS) < set(PHASES)
    assert set(LAYOUT_WORDS) == set(METHOD_TITLES)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("state", SHOWN)
def test_lines_and_texts_have_enough_contrast(state, scheme):
    fill, line, text = parts(PHASES[state], scheme)
    ground = CHROME["panel"][SCHEMES[scheme]]
    for under in {ground, CHROME["page"][SCHEMES[scheme]]}:
        assert contrast(line, under) >= 3
    assert contrast(text, fill or ground) >= 4.5
    small = PHASES[state].solid[SCHEMES[scheme]]
    if small and scheme == "dark":
        assert contrast(small, ground) >= 3


def looks(phase: Phase) -> tuple[str, bool, bool]:
    """What tells phases apart without colour: pattern, dashed outline, hollow."""
    return phase.pattern, phase.dash, not phase.light[0]


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_phases_differ_by_pattern_or_by_colour_for_every_sight(sight, scheme):
    for one, two in combinations(SHOWN, 2):
        first, second = PHASES[one], PHASES[two]
        if looks(first) != looks(second):
            continue
        fills, solids = (
            [getattr(p, scheme)[0] for p in (first, second)],
            [p.solid[SCHEMES[scheme]] for p in (first, second)],
        )
        assert distance(*fills, sight) >= 20, (one, two)
        assert distance(*solids, sight) >= 20, (one, two)


def test_prompt_and_accepted_are_told_apart_by_the_foot_band():
    """Their hues are too near for some: the band is the only prompt's sign that is always there."""
    prompt, accepted = PHASES["prompt"], PHASES["accepted"]
    assert min(distance(prompt.light[0], accepted.light[0], sight) for sight in SIGHTS) < 20
    assert (prompt.pattern, accepted.pattern) == ("band", "")
    assert [name for name, phase in PHASES.items() if phase.pattern == "band"] == ["prompt"]
    for scheme, place in SCHEMES.items():
        assert contrast(prompt.solid[place], prompt.light[0] if scheme == "light" else prompt.dark[0]) >= 1.8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_page_colours_can_be_read(scheme):
    colour = {name: pair[SCHEMES[scheme]] for name, pair in CHROME.items()}
    for text in ("text", "muted", "faint", "ink", "brand"):
        for ground in ("page", "panel"):
            assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    for name in ("text", "muted", "ink"):
        assert contrast(colour[name], colour["sunk"]) >= 4.5
    for name in ("agree", "differ"):
        assert contrast(colour[name], colour[f"{name}-tint"]) >= 4.5
    assert contrast(colour["brand"], colour["brand-tint"]) >= 4.5
    for name in ("vanilla", "waste", "useful", "brand"):
        assert contrast(colour[name], colour["panel"]) >= 3


def test_brand_is_no_phase():
    brand = set(CHROME["brand"])
    assert not any(brand & {*phase.light, *phase.dark, *phase.solid} for phase in PHASES.values())


def test_page_and_player_get_the_same_table():
    css, player = css_variables(), player_palette()
    assert player["chrome"] == CHROME
    for name, (light, dark) in CHROME.items():
        assert f"--e-{name}: light-dark({light}, {dark});" in css
    for name, phase in PHASES.items():
        assert player["phases"][name]["light"] == phase.light
        assert f"--e-{name}-line: light-dark({phase.light[1]}, {phase.dark[1]});" in css
    colours = [*CHROME.values(), *(p for phase in PHASES.values() for p in (phase.light, phase.dark, phase.solid))]
    assert all(COLOUR.fullmatch(colour) for group in colours for colour in group if colour)
