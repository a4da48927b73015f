"""The texts of a run as HTML: pure functions from traces to markup. Every text from outside passes `escaped`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from emssd.config import METHOD_TITLES
from emssd.trace import GenerationTrace
from emssd.ui.comparison import Clock, Equality, clock, latest, outputs_after, speed_ups
from emssd.ui.narration import plural
from emssd.ui.palette import ORIGINS
from emssd.ui.player_data import origins
from emssd.ui.token_text import escaped

TAIL_TOKENS = 400
LINE_ENDS = re.compile("(↵+)")
WORK_ROWS = (
    "Steps",
    "Tokens per row and step",
    "Drafts kept",
    "Input rows fed",
    "KV slots scanned",
    "Holes",
    "Tokens/s",
)
DEVICE_SENTENCE = "Not comparable with the paper’s GPU numbers."


def marker(method: str) -> str:
    """The method's sign, drawn by the style sheet."""
    return f'<i class="m m-{escaped(method)}"></i>'


def text_row(trace: GenerationTrace, row: int, num_steps: int) -> str:
    """New tokens of one row, underlined by origin; tokens of one step and origin share one underline."""
    pieces = []
    for step in trace.steps[:num_steps]:
        entry = step.rows[row]
        pieces += [
            (origin, step.index, trace.tokens.get(str(token), f"id {token} "))
            for token, origin in zip(entry.emitted_token_ids, origins(entry), strict=True)
        ]
    cut = '<span class="cut">…</span>' if len(pieces) > TAIL_TOKENS else ""
    spans = []
    for (origin, _), group in groupby(pieces[-TAIL_TOKENS:], key=lambda piece: piece[:2]):
        text = LINE_ENDS.sub(r"\1<br>", "".join(escaped(piece[2]) for piece in group))
        spans.append(f'<bdi class="o-{origin}">{text}</bdi>')
    return cut + "".join(spans)


def texts(traces: dict[str, GenerationTrace], steps: dict[str, int], titles: Sequence[str], live: bool) -> str:
    """Both methods' texts, row by row beside each other."""
    heads, clocks = [], {name: clock(trace.steps[: steps[name]]) for name, trace in traces.items()}
    for name in traces:
        emitted = sum(map(len, outputs_after(traces[name], steps[name])))
        own = f"{plural(emitted, 'token')}, {clocks[name].seconds[-1]:.1f} s of its own decode time"
        heads.append(f'<div class="t-head">{marker(name)}<b>{METHOD_TITLES[name]}</b><span>{own}</span></div>')
    cells = []
    for row, title in enumerate(titles):
        for name, trace in traces.items():
            emitted = sum(step.rows[row].num_emitted for step in trace.steps[: steps[name]])
            running = steps[name] == 0 or not trace.steps[steps[name] - 1].rows[row].finished
            count = plural(emitted, "token")
            caret = '<span class="caret"></span>' if live and running else ""
            cells.append(
                f'<div class="t-cell"><div class="t-title"><b>{escaped(title)}</b><span>{count}</span></div>'
                f'<p dir="ltr">{text_row(trace, row, steps[name])}{caret}</p></div>'
            )
    single = " single" if len(traces) == 1 else ""
    return f'<div class="texts{single}" data-testid="texts">{"".join(heads)}{"".join(cells)}</div>{origin_legend()}'


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


def speed_card(clocks: dict[str, Clock], differing: set[str], where: str, done: bool, recorded: bool = False) -> str:
    """Measured speed-up of every method against greedy, as bars with a rule at 1."""
    base = clocks.get("greedy")
    if base is None:
        return (
            '<div class="card"><b>Speed-up</b><p>No baseline: open the greedy trace of the same prompts, too.</p></div>'
        )
    factors = {name: latest(speed_ups(base, own)) for name, own in clocks.items() if name != "greedy"}
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
    verb = "Recorded" if recorded else "Measured"
    return (
        f'<div class="card"><b>Speed-up vs greedy, padded cache{sofar}</b>'
        f"<p>same prompts, decode only, prefill excluded, {escaped(where)}</p>{''.join(lines)}"
        f'<p class="device">{verb} on {escaped(where.split(":")[0])}. {DEVICE_SENTENCE}</p></div>'
    )


def work_card(traces: dict[str, GenerationTrace], steps: dict[str, int]) -> str:
    """Steps, rows, slots and holes of every method, as a table."""
    rows: list[tuple[str, list[str]]] = [(label, []) for label in WORK_ROWS]
    for name, trace in traces.items():
        done = [step for step in trace.steps[: steps[name]] if step.kind == "decode"]
        live = [row for step in done for row in step.rows if row.kind == "decode"]
        emitted, drafted = sum(row.num_emitted for row in live), sum(row.num_drafted for row in live)
        seconds = sum(step.seconds.get("total", 0.0) for step in done)
        scanned = sum(sum(step.account.kv_slots_scanned["per_token"].values()) for step in done)
        values = (
            f"{len(done)}",
            f"{emitted / len(live):.2f}" if live else "–",
            f"{100 * sum(row.num_accepted for row in live) / drafted:.0f} %" if drafted else "–",
            f"{sum(sum(step.account.input_rows.values()) for step in done):,}",
            f"{scanned:,}",
            f"{done[-1].account.holes_total if done else 0:,}",
            f"{emitted / seconds:.1f}" if seconds else "–",
        )
        for (_, cells), value in zip(rows, values, strict=True):
            cells.append(value)
    heads = "".join(f"<th>{METHOD_TITLES[name].split(',')[0]}</th>" for name in traces)
    body = "".join(f"<tr><td>{label}</td>{''.join(f'<td>{v}</td>' for v in cells)}</tr>" for label, cells in rows)
    return f'<div class="card"><b>Work</b><table><tr><th></th>{heads}</tr>{body}</table></div>'


def board(main: str, *cards: str) -> str:
    """The texts, and cards beside them."""
    return f'<div class="board"><div>{main}</div><div class="cards">{"".join(cards)}</div></div>'


def progress(share: float, left: str, right: str) -> str:
    """A bar with words at both ends."""
    words = f"<div><span>{escaped(left)}</span><span>{escaped(right)}</span></div>"
    role = f'role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{100 * share:.0f}"'
    return f'<div class="progress" {role}>{words}<u><i style="width:{100 * share:.1f}%"></i></u></div>'


def status_line(state: str, title: str, note: str) -> str:
    """State of the run in words, with its dot."""
    words = f"<b>{escaped(title)}</b><span>{escaped(note)}</span>"
    dot = f'<i class="dot {state}"></i>'
    return f'<div class="status" data-testid="status" data-state="{state}">{dot}<div>{words}</div></div>'
