"""A run as HTML: pure functions from its progress to markup. Every text from outside passes `escaped`."""

from __future__ import annotations

from collections.abc import Sequence

from emssd.config import METHOD_TITLES
from emssd.ui.comparison import Clock, Equality, latest_speed_up
from emssd.ui.narration import plural
from emssd.ui.palette import ORIGINS
from emssd.ui.progress import MethodProgress, RowText
from emssd.ui.token_text import escaped

WORK_ROWS = (
    "Steps",
    "Tokens per row and step",
    "Drafts kept",
    "Input rows fed",
    "KV slots read",
    "Holes",
    "Tokens/s",
)
SPARK_STEPS = 30
DEVICE_SENTENCE = "Not comparable with the paper’s GPU numbers."


def marker(method: str) -> str:
    """The method's sign, drawn by the style sheet."""
    return f'<i class="m m-{escaped(method)}"></i>'


def heads(methods: dict[str, MethodProgress]) -> str:
    """The head line above both methods' texts."""
    cells = []
    for name, method in methods.items():
        own = f"{plural(method.emitted, 'token')}, {method.clock.seconds[-1]:.1f} s of its own decode time"
        cells.append(f'<div class="t-head">{marker(name)}<b>{METHOD_TITLES[name]}</b><span>{own}</span></div>')
    return _pair(cells, "texts heads")


def text_row(methods: dict[str, MethodProgress], row: int, title: str, live: bool) -> str:
    """One row's new tokens, one method beside the other."""
    cells = [_cell(method.rows[row], title, live) for method in methods.values()]
    return _pair(cells, "texts")


def _cell(text: RowText, title: str, live: bool) -> str:
    caret = '<span class="caret"></span>' if live and not text.finished else ""
    count = plural(text.emitted, "token")
    head = f'<div class="t-title"><b>{escaped(title)}</b><span>{count}</span></div>'
    return f'<div class="t-cell">{head}<p dir="ltr">{text.html}{caret}</p></div>'


def _pair(cells: Sequence[str], kind: str) -> str:
    single = " single" if len(cells) == 1 else ""
    return f'<div class="{kind}{single}" data-testid="texts">{"".join(cells)}</div>'


def origin_legend() -> str:
    """What the underlines mean."""
    items = [f'<span><bdi class="o-{name}">{name}</bdi> {words}</span>' for name, words in ORIGINS.items()]
    return f'<div class="origins">{"".join(items)}<span><b>↵</b> line end</span></div>'


def badges(equal: dict[str, Equality]) -> str:
    """The equality badges of some methods."""
    return '<div class="badges">' + "".join(badge(each, name) for name, each in equal.items()) + "</div>"


def badge(equality: Equality, name: str, baseline: str = "greedy") -> str:
    """The equality badge of one method."""
    kind, sign = ("agree", "✓") if equality.identical else ("differ", "✕")
    title = METHOD_TITLES.get(name, name)
    return (
        f'<div class="badge {kind}" data-testid="equality" data-method="{escaped(name)}">'
        f"<b>{sign} {title}</b> {equality.sentence(baseline)}</div>"
    )


def speed_card(clocks: dict[str, Clock], differing: set[str], where: str, done: bool) -> str:
    """Measured speed-up of every method against greedy, as bars with a rule at 1."""
    base = clocks.get("greedy")
    factors = {
        name: None if base is None else latest_speed_up(base, own) for name, own in clocks.items() if name != "greedy"
    }
    known = [factor for factor in factors.values() if factor]
    top = max(1.0, *known) if known else 1.0
    lines = []
    for name, factor in [*factors.items(), ("greedy", 1.0)]:
        value = "–" if factor is None else f"{factor:.2f}×"
        wrong = ' <span class="wrong">output differs</span>' if name in differing else ""
        grey = " invalid" if name in differing else ""
        bar = "" if factor is None else f'<i class="b-{name}" style="width:{100 * factor / top:.1f}%"></i>'
        lines.append(
            f'<div class="s-line{grey}" data-testid="speed-{name}">{marker(name)}'
            f"<span>{METHOD_TITLES[name]}{wrong}</span><b>{value}</b></div>"
            f'<div class="s-bar">{bar}<u style="left:{100 / top:.1f}%"></u></div>'
        )
    sofar = "" if done else ", so far"
    return (
        f'<div class="card"><b>Speed-up vs greedy{sofar}</b>'
        f"<p>greedy on the padded cache, same prompts, decode only, prefill excluded, {escaped(where)}</p>"
        f'{"".join(lines)}<p class="device">Measured on {escaped(where.split(":")[0])}. {DEVICE_SENTENCE}</p></div>'
    )


def acceptance_card(methods: dict[str, MethodProgress]) -> str:
    """Drafts kept in the last steps of the last method, as an area; nothing where no draft was made."""
    drafting = [(name, method) for name, method in methods.items() if method.drafted]
    if not drafting:
        return ""
    name, method = drafting[-1]
    rates = [rate for rate in method.kept_rates if rate is not None][-SPARK_STEPS:]
    last = f"{100 * rates[-1]:.0f}"
    gain = f"{method.decoded / method.live_rows:.1f} tokens per row and step"
    words = f"{100 * method.accepted / method.drafted:.0f} % so far, {gain}"
    label = f"Drafts kept in the last {plural(len(rates), 'step')} with drafts, last {last} %"
    return (
        f'<div class="card"><b>Acceptance</b><p>% of drafts kept per step, {METHOD_TITLES[name]}</p>'
        f'<div class="spark" role="img" aria-label="{label}">'
        f'<u style="clip-path:polygon({_outline(rates, 100)})"></u><i style="clip-path:polygon({_line(rates)})"></i>'
        f'<b style="top:{100 - 100 * rates[-1]:.0f}%">{last}</b></div><p>{words}</p></div>'
    )


def _points(rates: Sequence[float]) -> list[tuple[float, float]]:
    """(x, y) in percent of the picture, y down."""
    width = max(len(rates) - 1, 1)
    points = [(100 * place / width, 100 - 100 * rate) for place, rate in enumerate(rates)]
    return points if len(points) > 1 else [(0.0, points[0][1]), (100.0, points[0][1])]


def _outline(rates: Sequence[float], bottom: float) -> str:
    points = _points(rates)
    closed = [*points, (points[-1][0], bottom), (points[0][0], bottom)]
    return ",".join(f"{x:.1f}% {y:.1f}%" for x, y in closed)


def _line(rates: Sequence[float]) -> str:
    """A line 2 px thick as an area."""
    points = _points(rates)
    above = [f"{x:.1f}% calc({y:.1f}% - 1px)" for x, y in points]
    below = [f"{x:.1f}% calc({y:.1f}% + 1px)" for x, y in reversed(points)]
    return ",".join(above + below)


def work_card(methods: dict[str, MethodProgress]) -> str:
    """Steps, rows, slots and holes of every method, as a table."""
    rows: list[tuple[str, list[str]]] = [(label, []) for label in WORK_ROWS]
    for method in methods.values():
        seconds = method.clock.seconds[-1]
        values = (
            f"{method.decode_steps}",
            f"{method.decoded / method.live_rows:.2f}" if method.live_rows else "–",
            f"{100 * method.accepted / method.drafted:.0f} %" if method.drafted else "–",
            f"{method.input_rows:,}",
            f"{method.slots_read:,}",
            f"{method.holes:,}",
            f"{method.decoded / seconds:.1f}" if seconds else "–",
        )
        for (_, cells), value in zip(rows, values, strict=True):
            cells.append(value)
    names = "".join(f"<th>{METHOD_TITLES[name].split(',')[0]}</th>" for name in methods)
    body = "".join(f"<tr><td>{label}</td>{''.join(f'<td>{v}</td>' for v in cells)}</tr>" for label, cells in rows)
    return f'<div class="card"><b>Work</b><table><tr><th></th>{names}</tr>{body}</table></div>'


def prompt_cards(titles: Sequence[str], texts: Sequence[str], counts: Sequence[int], facts: dict[str, str]) -> str:
    """The prompts with their token counts, and below them what the run was set to."""
    cards = [
        f'<div class="p-card"><div class="t-title"><b>{escaped(title)}</b><span>{plural(count, "token")}</span></div>'
        f"<p>{escaped(' '.join(text.split()))}</p></div>"
        for title, text, count in zip(titles, texts, counts, strict=True)
    ]
    lines = "".join(f"<div><span>{label}</span><b>{escaped(value)}</b></div>" for label, value in facts.items())
    head = f'<div class="p-head"><b>Prompts</b><span>{plural(len(cards), "row")}</span></div>'
    return f'{head}<div class="p-cards">{"".join(cards)}</div><div class="facts">{lines}</div>'


def progress(share: float, left: str, right: str) -> str:
    """A bar with words at both ends."""
    words = f"<div><span>{escaped(left)}</span><span>{escaped(right)}</span></div>"
    role = 'role="progressbar" aria-label="Tokens decoded" aria-valuemin="0" aria-valuemax="100" '
    role += f'aria-valuenow="{100 * share:.0f}"'
    return f'<div class="progress" {role}>{words}<u><i style="width:{100 * share:.1f}%"></i></u></div>'


def status_line(state: str, title: str, note: str) -> str:
    """State of the run in words, with its dot."""
    words = f"<b>{escaped(title)}</b><span>{escaped(note)}</span>"
    dot = f'<i class="dot {state}"></i>'
    return f'<div class="status" data-testid="status" data-state="{state}">{dot}<div>{words}</div></div>'
