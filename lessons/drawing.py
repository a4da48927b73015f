"""The pictures that lessons ask for, drawn from the shipped traces: a KV cache, the fed tokens, or the paper's chart.

A lesson's column shows 372 px of width. `cell=18` makes the cells of a wide picture narrow enough for that,
`slots=7` shows the first seven slots only.

In a text: `![words](pictures/05_cache.svg)<!-- picture: cache preset=figure2 method=vanilla step=2 sub=commit -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from emssd.cells import SUBSTEPS, Cell, cells_at
from emssd.config import METHOD_TITLES, METHODS
from emssd.errors import EmssdError
from emssd.paper import BATCH_SIZES
from emssd.trace import GenerationTrace, RowTrace
from emssd.ui.palette import PHASES
from lessons import svg
from lessons.facts import cells, paper, trace

REQUEST = re.compile(
    r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)\s]+)\)<!-- picture: (?P<kind>\w+)(?P<options>(?: [\w-]+=[^\s]+)*) -->"
)
ANY_REQUEST = "<!-- picture:"
FENCE = re.compile(r"\s*(```|~~~)")
KINDS = {
    "cache": {"preset", "method", "step", "sub", "rows", "cell", "slots"},
    "input": {"preset", "method", "step", "sub", "rows", "cell"},
    "draftcache": {"preset", "method", "step", "rows"},
    "chart": {"methods"},
}
LABEL = 58
NARROW_LABEL = 42
MOST_SLOTS = 24
BEFORE = 16
STRIP = 20
ROW_HEIGHT = svg.CELL_HEIGHT + 34


@dataclass(frozen=True)
class Picture:
    """One picture that a text asks for.

    Args:
        target: its file, relative to the text; alt: what it shows, in words.
        kind: cache, input, draftcache or chart; options: as in the text.
        place: file and line that ask for it.
    """

    target: str
    alt: str
    kind: str
    options: dict[str, str]
    place: str


def pictures_of(path: Path) -> Iterator[Picture]:
    """Every picture that a text asks for.

    Raises:
        ValueError: a request that cannot be read; the message names file and line.
    """
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fenced ^= bool(FENCE.match(line))
        if fenced:
            continue
        place, found = f"{path.name}, line {number}", list(REQUEST.finditer(line))
        if len(found) != line.count(ANY_REQUEST):
            raise ValueError(f"{place}: a picture is ![words](file.svg)<!-- picture: KIND name=value ... -->")
        for match in found:
            options = dict(pair.split("=", 1) for pair in match["options"].split())
            unknown = set(options) - KINDS.get(match["kind"], set())
            if match["kind"] not in KINDS or unknown:
                raise ValueError(f"{place}: there is no picture {match['kind']} {' '.join(sorted(unknown))}".rstrip())
            if not re.fullmatch(r"pictures/[\w-]+\.svg", match["target"]) or not match["alt"].strip():
                raise ValueError(f"{place}: a drawn picture lies in pictures/, ends in .svg and has words for its alt")
            yield Picture(match["target"], match["alt"], match["kind"], options, place)


def draw(picture: Picture) -> str:
    """The picture as SVG.

    Raises:
        ValueError: a preset, method, step, sub-step or row that there is not.
    """
    options = picture.options
    try:
        if picture.kind == "chart":
            return _chart(picture.alt, options.get("methods", "vanilla,ems-sd").split(","))
        methods = options["method"].split(",")
        step, sub = int(options["step"]), options.get("sub", "commit")
        if sub not in SUBSTEPS:
            raise ValueError(f"no sub-step {sub}")
        chosen = [int(row) for row in options["rows"].split(",")] if "rows" in options else None
        wide = int(options.get("cell", svg.CELL_WIDTH))
        if picture.kind == "draftcache":
            [method], [number] = methods, chosen or [0]
            return _draft_cache(picture.alt, trace(options["preset"], method), step, number)
        runs = [(trace(options["preset"], name), options["preset"], name) for name in methods]
        most = int(options["slots"]) if "slots" in options else None
        panes = [_Pane(*run, step, sub, chosen, wide, most) for run in runs]
    except (EmssdError, KeyError, ValueError, IndexError) as error:
        raise ValueError(f"{picture.place}: {type(error).__name__}: {error}") from error
    drawn = [pane.cache() if picture.kind == "cache" else pane.input() for pane in panes]
    return _stacked(picture.alt, panes, drawn)


def _stacked(title: str, panes: Sequence[_Pane], drawn: Sequence[tuple[list[str], float, float]]) -> str:
    """Panes below each other, and one legend."""
    least = 340 if panes[0].wide < svg.CELL_WIDTH else 420  # room for the titles
    width = max([wide for _, wide, _ in drawn] + [least]) + 2 * svg.MARGIN
    used = {name for pane in panes for name in pane.used}
    phases = [name for name in PHASES if name in used and name != "free"]
    y, body = float(svg.MARGIN), []
    for parts, _, high in drawn:
        body.append(f'<g transform="translate({svg.MARGIN} {y:g})">{"".join(parts)}</g>')
        y += high + 14
    shown, high = svg.legend(svg.MARGIN, y, phases, width - 2 * svg.MARGIN)
    return svg.page(width, y + high + svg.MARGIN - 6, title, "\n".join([*body, shown]), phases)


class _Pane:
    """One method at one sub-step."""

    def __init__(
        self,
        run: GenerationTrace,
        preset: str,
        method: str,
        step: int,
        sub: str,
        chosen: Sequence[int] | None,
        wide: int = svg.CELL_WIDTH,
        most: int | None = None,
    ) -> None:
        self.run, self.method, self.sub, self.wide, self.most = run, method, sub, wide, most
        self.label = LABEL if wide == svg.CELL_WIDTH else NARROW_LABEL
        self.step = run.steps[step]
        self.before = run.steps[max(step - 1, 0)]
        self.rows = [self.step.rows[number] for number in (range(len(run.rows)) if chosen is None else chosen)]
        self.grid = cells(preset, method, step, sub)
        self.used: set[str] = set()
        self.cache_kind, self.input_kind = METHODS[method]
        self.judged = sub in ("verify", "commit") and step > 0

    def title(self, what: str) -> str:
        """The pane's heading."""
        when = "after prefill" if self.step.index == 0 else f"step {self.step.index}, {self.sub}"
        name = f'<tspan font-weight="700">{METHOD_TITLES[self.method]}</tspan>'
        size = 14 if self.wide == svg.CELL_WIDTH else 12.5
        return f'<text x="0" y="13" font-size="{size:g}" fill="{svg.INK}">{name} {what}, {when}</text>'

    def token(self, token: int | None) -> str:
        """A token's text."""
        return "" if token is None else self.run.tokens.get(str(token), str(token))

    def cursor(self, row: RowTrace) -> int:
        """The slot that a row writes next, at this sub-step."""
        moved = self.sub == "commit" or self.step.index == 0
        return (row if moved else self.before.rows[row.row]).next_slot

    # the cache ---------------------------------------------------------------------------------------------------

    def cache(self) -> tuple[list[str], float, float]:
        """Parts, width and height of the cache's rows."""
        slots = len(self.grid[0]) if self.most is None else min(len(self.grid[0]), self.most)
        narrow = slots <= MOST_SLOTS
        shared = self.cache_kind == "padded"
        own = "a cursor for each row" if self.wide == svg.CELL_WIDTH else "own cursors"
        cursors = f", {'one shared cursor' if shared else own}" if len(self.rows) > 1 else ""
        parts = [self.title(f"KV cache{cursors}")]
        top = 26.0
        for number, row in enumerate(self.rows):
            first = 0 if narrow else max(0, self.before.rows[row.row].next_slot - BEFORE)
            parts += self._cache_row(row, first, min(slots - first, MOST_SLOTS), top + number * ROW_HEIGHT)
        width = self.label + min(slots, MOST_SLOTS) * self.wide + 20
        return parts, width, top + len(self.rows) * ROW_HEIGHT

    def _cache_row(self, row: RowTrace, first: int, count: int, top: float) -> list[str]:
        y, narrow = top + 24, self.wide < svg.CELL_WIDTH
        parts = [svg.text(0, y + 21, f"row {row.row}", 12, fill=svg.MUTED)]
        line = self.grid[row.row]
        for place in range(count):
            x, cell = self.label + place * self.wide, line[first + place]
            parts.append(self._cell(x, y, cell))
            if narrow or first + place != self.cursor(row):
                size = 9.5 if narrow else 11  # apart from the line of a cursor
                parts.append(svg.text(x + self.wide / 2, y - 5, str(first + place), size, "middle", svg.MUTED))
        at = self.cursor(row) - first
        if 0 <= at <= count:
            x, shared = self.label + at * self.wide, self.cache_kind == "padded"
            joined = shared and row is not self.rows[-1]
            top = y - 15 if narrow else y - 3  # a flag is wider than a narrow cell: it stands above the numbers
            parts.append(svg.line(x, top, x, y + (ROW_HEIGHT if joined else svg.CELL_HEIGHT + 4), width=2.2))
            if not shared or row is self.rows[0]:
                parts.append(svg.flag(x, top, self.cursor(row)))
        return parts

    def _cell(self, x: float, y: float, cell: Cell) -> str:
        self.used.add(cell.state)
        silent = cell.state in ("hole", "pad", "free")
        return svg.cell(x, y, cell.state, "" if silent else self.token(cell.token_id), self.wide)

    # the fed tokens ----------------------------------------------------------------------------------------------

    def input(self) -> tuple[list[str], float, float]:
        """Parts, width and height of the fed tokens: a rectangle, or one strip."""
        if self.input_kind == "padded":
            return self._rectangle()
        return self._strip()

    def _rectangle(self) -> tuple[list[str], float, float]:
        widest = max((len(row.slots) for row in self.rows), default=0)
        parts = [self.title(f"feeds {widest * len(self.rows)} input rows: {len(self.rows)} x {widest}")]
        for number, row in enumerate(self.rows):
            y = 26 + number * (ROW_HEIGHT + 16) + 24
            parts.append(svg.text(0, y + 21, f"row {row.row}", 12, fill=svg.MUTED))
            for place in range(len(row.slots)):
                parts += self._fed(self.label + place * self.wide, y, row, place)
            for place in range(len(row.slots), widest):  # a finished row is fed as well
                parts.append(self._cell(self.label + place * self.wide, y, Cell("pad", cause="finished")))
        return parts, self.label + widest * self.wide + 20, 26 + len(self.rows) * (ROW_HEIGHT + 16)

    def _strip(self) -> tuple[list[str], float, float]:
        fed = sum(len(row.slots) for row in self.rows)
        once = " as one sequence" if self.wide == svg.CELL_WIDTH else ": one strip"
        parts = [self.title(f"feeds {fed} input rows{once}")]
        x, y, flat, widest = 0.0, 26 + 44.0, 0, 0.0
        for row in self.rows:
            size = len(row.slots)
            if x and x + size * self.wide > STRIP * svg.CELL_WIDTH:
                x, y = 0.0, y + ROW_HEIGHT + 40
            words = f"row {row.row}: {self._words(row) if size else 'nothing'}"
            parts.append(svg.text(x + 3, y - 28, words, 12, fill=svg.MUTED))
            parts.append(svg.line(x + 3, y - 22, x + max(size, 1) * self.wide - 3, y - 22, svg.MUTED))
            for place in range(size):
                parts += self._fed(x + place * self.wide, y, row, place)
                parts.append(
                    svg.text(
                        x + (place + 0.5) * self.wide, y + svg.CELL_HEIGHT + 30, str(flat), 11, "middle", svg.MUTED
                    )
                )
                flat += 1
            parts.append(svg.line(x, y - 24, x, y + svg.CELL_HEIGHT + 34, width=1.6))
            end = x + size * self.wide
            parts.append(svg.line(end, y - 24, end, y + svg.CELL_HEIGHT + 34, width=1.6))
            x += max(size, 2.4) * self.wide
            widest = max(widest, x)
        place = "its place in the sequence"
        notes = [f"above a cell: its slot; below: {place}"]
        if self.judged:
            notes = ["above a cell: its slot", f"below: the target’s answer, and {place}"]
        y += svg.CELL_HEIGHT + 52
        parts += [svg.text(0, y + 15 * n, note, 11, fill=svg.MUTED) for n, note in enumerate(notes)]
        return parts, widest + 20, y + 15 * len(notes) - 9

    def _words(self, row: RowTrace) -> str:
        if row.kind == "prefill":
            return f"{len(row.slots)} prompt tokens"
        many = row.num_drafted
        return f"1 + {many}" if len(row.slots) < 3 else f"1 + {many} draft{'' if many == 1 else 's'}"

    def _fed(self, x: float, y: float, row: RowTrace, place: int) -> list[str]:
        kind = row.input_kinds[place]
        state = kind
        if kind == "draft" and self.judged:
            state = "accepted" if place <= row.num_accepted else "rejected"
        self.used.add(state)
        middle = x + self.wide / 2
        parts = [
            svg.cell(x, y, state, "" if kind == "pad" else self.token(row.input_token_ids[place]), self.wide),
            svg.text(middle, y - 5, str(row.slots[place]), 11, "middle", svg.MUTED),
        ]
        if self.judged and kind != "pad" and place <= row.num_drafted and place < len(row.target_token_ids):
            used = place <= row.num_accepted and place < row.num_emitted
            answer = svg._shortened(self.token(row.target_token_ids[place])) if used else "unused"
            look = 'font-weight="700"' if used else 'font-style="italic"'
            parts.append(
                svg.text(middle, y + svg.CELL_HEIGHT + 14, answer, 11, "middle", svg.INK if used else svg.MUTED, look)
            )
        return parts


# the draft model's cache -------------------------------------------------------------------------------------------


def _draft_cache(title: str, run: GenerationTrace, step: int, number: int) -> str:
    """A row whose drafts were all kept: its text, what the draft model's cache holds, and what it is fed next.

    Raises:
        ValueError: not all drafts of the row were kept.
    """
    row = run.steps[step].rows[number]
    drafts = row.num_drafted
    if not drafts or row.num_accepted < drafts or row.num_emitted <= drafts:
        raise ValueError(f"row {number} did not keep all its drafts in step {step}")
    first = row.cache_start - 1  # a cell of the text before
    before = [*run.rows[number].prompt_token_ids, *run.rows[number].output_token_ids][first]
    tokens = [before, *row.input_token_ids, row.emitted_token_ids[-1]]
    grid = cells_at(run, step, "commit")[number]
    states = [*[cell.state for cell in grid[first : first + drafts + 2]], "bonus"]
    last = len(tokens) - 2  # the last draft: never fed to the draft model
    cached = [state if place < last else "free" for place, state in enumerate(states)]
    right = [*states[:-1], "pending"]
    wrong = [*states[:last], "hole", "pending"]
    lines = [
        (
            f"Row {number} after step {step}: its text",
            states,
            ["", "", *[f"draft {k + 1}" for k in range(drafts)], "bonus"],
        ),
        ("The draft model’s cache at this moment", cached, [*[""] * last, "never fed", "new"]),
        (f"Step {step + 1} feeds {len(tokens) - last} tokens: nothing is lacking", right, [*[""] * last, "fed", "fed"]),
        (f"Step {step + 1} feeds only the bonus token: a gap stays", wrong, [*[""] * last, "gap", "fed"]),
    ]
    parts, high = [], svg.CELL_HEIGHT + 58
    for place, (words, line, notes) in enumerate(lines):
        y = svg.MARGIN + place * high + 12.0
        parts.append(svg.text(svg.MARGIN, y, words, 13, fill=svg.INK, more='font-weight="700"'))
        for slot, (state, token, note) in enumerate(zip(line, tokens, notes, strict=True)):
            x = svg.MARGIN + slot * svg.CELL_WIDTH
            middle = x + svg.CELL_WIDTH / 2
            text = "" if state in ("free", "hole") else run.tokens.get(str(token), str(token))
            parts.append(svg.cell(x, y + 22, state, text))
            parts.append(svg.text(middle, y + 17, str(first + slot), 11, "middle", svg.MUTED))
            parts.append(svg.text(middle, y + 22 + svg.CELL_HEIGHT + 13, note, 11, "middle", svg.MUTED))
    used = {state for _, line, _ in lines for state in line}
    phases = [name for name in PHASES if name in used and name != "free"]
    wide = len(tokens) * svg.CELL_WIDTH + 2 * svg.MARGIN
    y = svg.MARGIN + len(lines) * high
    shown, tall = svg.legend(svg.MARGIN, y, phases, wide - 2 * svg.MARGIN)
    return svg.page(wide, y + tall + svg.MARGIN - 6, title, "\n".join([*parts, shown]), phases)


# the chart ---------------------------------------------------------------------------------------------------------

STYLES = {
    "ems-sd": (svg.BRAND, "", "circle"),
    "vanilla": ("#5F6672", "7 3", "square"),
    "packed-input": ("#A85400", "2 3", "left"),
    "ragged-cache": ("#0F766E", "2 3", "down"),
}


def _chart(title: str, methods: Sequence[str]) -> str:
    """The paper's speed-up over greedy by batch size: its points, joined."""
    unknown = [name for name in methods if name not in STYLES]
    if unknown:
        raise ValueError(f"no chart of {', '.join(unknown)}")
    left, top, wide, high = 52.0, 40.0, 500.0, 240.0
    largest = 4.0

    def place(batch: int, value: float) -> tuple[float, float]:
        return left + (batch - 1) / (BATCH_SIZES[-1] - 1) * wide, top + high * (1 - value / largest)

    parts = [
        svg.text(
            left - 36,
            22,
            "Speed-up over greedy by batch size, as published",
            14,
            fill=svg.INK,
            more='font-weight="700"',
        )
    ]
    for value in range(int(largest) + 1):
        y = place(1, value)[1]
        parts.append(svg.line(left, y, left + wide, y, "#E6E8EC", 1))
        parts.append(svg.text(left - 8, y + 4, f"{value}x", 11, "end", svg.MUTED))
    y = place(1, 1)[1]
    parts.append(svg.line(left, y, left + wide, y, svg.INK, 1.3, "5 4"))
    labels = [(y, "Greedy 1x", svg.INK)]
    for batch in BATCH_SIZES:
        x = place(batch, 0)[0]
        parts.append(svg.text(x, top + high + 17, str(batch), 11, "middle", svg.MUTED))
    parts.append(svg.text(left + wide / 2, top + high + 36, "batch size", 12, "middle", svg.MUTED))
    for name in methods:
        points = [(place(batch, value), value) for batch, value in _points(name)]
        parts += _curve(name, [point for point, _ in points])
        (_, end), last = points[-1]
        labels.append((end, f"{METHOD_TITLES[name]} {last:.2f}x", STYLES[name][0]))
    parts += _labels(left + wide + 10, labels)
    return svg.page(left + wide + 200, top + high + 50, title, "\n".join(parts), [])


def _labels(x: float, labels: Sequence[tuple[float, str, str]]) -> list[str]:
    """The curves' names at their ends, moved up where they would touch the one below."""
    parts, lowest = [], float("inf")
    for y, words, colour in sorted(labels, reverse=True):
        lowest = min(y, lowest - 15)
        parts.append(svg.text(x, lowest + 4, words, 12, fill=colour, more='font-weight="700"'))
    return parts


def _points(method: str) -> list[tuple[int, float]]:
    found = []
    for batch in BATCH_SIZES:
        try:
            found.append((batch, paper(batch, method)))
        except KeyError:  # the paper has no number there
            continue
    return found


def _curve(name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    colour, dash, sign = STYLES[name]
    parts = [svg.line(*a, *b, colour, 2, dash) for a, b in pairwise(points)]
    for x, y in points:
        if sign == "circle":
            parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="4.5" fill="{colour}"/>')
        else:
            shape = {"square": "M-4 -4H4V4H-4Z", "left": "M4 -5V5L-5 0Z", "down": "M-5 -4H5L0 5Z"}[sign]
            look = f'fill="#FFFFFF" stroke="{colour}" stroke-width="1.8"'
            parts.append(f'<path transform="translate({x:g} {y:g})" d="{shape}" {look}/>')
    return parts
