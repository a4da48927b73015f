"""What the page shows of a run, kept up step by step: a poll looks at new steps alone, whatever has been decoded."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from itertools import groupby

from emssd.trace import GenerationTrace, RowTrace, StepTrace
from emssd.ui.comparison import Clock, Equality
from emssd.ui.token_text import escaped

TAIL_TOKENS = 400
LINE_ENDS = re.compile("(↵+)")


def origins(row: RowTrace) -> list[str]:
    """Where each token came from that the row emitted in one step."""
    kept = min(row.num_accepted, row.num_emitted)
    return ["accepted"] * kept + [row.next_kind or "plain"] * (row.num_emitted - kept)


class RowText:
    """New tokens of one row as HTML, underlined by origin; tokens of one step and origin share one underline.

    Token texts are escaped; the last `TAIL_TOKENS` tokens are kept, whole steps of them.
    """

    def __init__(self) -> None:
        self.emitted = 0
        self.finished = False
        self._spans: deque[tuple[int, str]] = deque()
        self._kept = 0
        self._html: str | None = ""

    def add(self, row: RowTrace, tokens: dict[str, str]) -> None:
        """Take in the row's entry of the next step."""
        self.finished = row.finished
        if not row.num_emitted:
            return
        pairs = zip(row.emitted_token_ids, origins(row), strict=True)
        for origin, group in groupby(pairs, key=lambda pair: pair[1]):
            texts = [tokens.get(str(token), f"id {token} ") for token, _ in group]
            self._spans.append((len(texts), f'<bdi class="o-{origin}">{"".join(map(_token_html, texts))}</bdi>'))
            self._kept += len(texts)
        while self._kept > TAIL_TOKENS:
            self._kept -= self._spans.popleft()[0]
        self.emitted += row.num_emitted
        self._html = None

    @property
    def html(self) -> str:
        """The markup so far."""
        if self._html is None:
            cut = '<span class="cut">…</span>' if self._kept < self.emitted else ""
            self._html = cut + "".join(html for _, html in self._spans)
        return self._html


def _token_html(text: str) -> str:
    return LINE_ENDS.sub(r"\1<br>", escaped(text))


class MethodProgress:
    """Totals, texts and clock of one method after the first `steps` steps of its trace.

    Args:
        trace: of a run that may still be going on.
    """

    def __init__(self, trace: GenerationTrace) -> None:
        self.trace = trace
        self.steps = 0
        self.rows = [RowText() for _ in trace.rows]
        self.outputs: list[list[int]] = [[] for _ in trace.rows]
        self.clock = Clock([0], [0.0])
        self.kept_rates: list[float | None] = []
        """[decode steps] accepted / drafted; None where nothing was drafted."""
        self.decoded = self.live_rows = self.drafted = self.accepted = 0
        self.input_rows = self.slots_read = self.holes = 0

    @property
    def emitted(self) -> int:
        """New tokens of all rows, prefill's included."""
        return sum(row.emitted for row in self.rows)

    @property
    def decode_steps(self) -> int:
        """Steps without prefill."""
        return len(self.clock.tokens) - 1

    @property
    def done(self) -> bool:
        """Whether every row has ended."""
        return self.steps > 0 and all(row.finished for row in self.rows)

    def advance(self, num_steps: int) -> None:
        """Take in the steps up to `num_steps`."""
        for step in self.trace.steps[self.steps : num_steps]:
            self._add(step)
        self.steps = max(num_steps, self.steps)

    def _add(self, step: StepTrace) -> None:
        for row in step.rows:
            self.rows[row.row].add(row, self.trace.tokens)
            self.outputs[row.row].extend(row.emitted_token_ids)
        if step.kind != "decode":
            return
        live = [row for row in step.rows if row.kind == "decode"]
        emitted = sum(row.num_emitted for row in live)
        drafted, accepted = sum(row.num_drafted for row in live), sum(row.num_accepted for row in live)
        self.kept_rates.append(accepted / drafted if drafted else None)
        self.clock.tokens.append(self.clock.tokens[-1] + emitted)
        self.clock.seconds.append(self.clock.seconds[-1] + step.seconds.get("total", 0.0))
        self.decoded += emitted
        self.live_rows += len(live)
        self.drafted += drafted
        self.accepted += accepted
        self.input_rows += sum(step.account.input_rows.values())
        self.slots_read += sum(step.account.kv_slots_scanned["per_token"].values()) * step.account.attention_launches
        self.holes = step.account.holes_total


class RunningEquality:
    """Compares two outputs as they grow; every token is looked at once. Says what `compare_outputs` would say."""

    def __init__(self, num_rows: int) -> None:
        self._checked = [0] * num_rows
        self._first: dict[int, int] = {}

    def update(self, baseline: Sequence[Sequence[int]], other: Sequence[Sequence[int]], complete: bool) -> Equality:
        """Equality of [rows] tokens each; `complete` says that both runs have ended."""
        for row, (left, right) in enumerate(zip(baseline, other, strict=True)):
            common, until = self._checked[row], min(len(left), len(right))
            while row not in self._first and common < until:
                if left[common] != right[common]:
                    self._first[row] = common
                else:
                    common += 1
            self._checked[row] = common
        differences = [(place + 1, row) for row, place in self._first.items()]
        if complete:
            ends = [(row, len(left), len(right)) for row, (left, right) in enumerate(zip(baseline, other, strict=True))]
            differences += [
                (min(left, right) + 1, row) for row, left, right in ends if left != right and row not in self._first
            ]
        token, at_row = min(differences, default=(None, None))
        return Equality(sum(self._checked), sum(map(len, baseline)), at_row, token, complete)


class RunProgress:
    """All methods of a run, and how the outputs compare with the baseline's."""

    def __init__(self, traces: dict[str, GenerationTrace], baseline: str = "greedy") -> None:
        self.methods = {name: MethodProgress(trace) for name, trace in traces.items()}
        self.baseline = baseline
        rows = [len(trace.rows) for trace in traces.values()]
        self._equality = {name: RunningEquality(rows[0]) for name in traces if name != baseline}

    def advance(self, steps: dict[str, int]) -> None:
        """Take in the steps that each run has come to."""
        for name, count in steps.items():
            self.methods[name].advance(count)

    def equalities(self) -> dict[str, Equality]:
        """Each started method's output against the baseline's, as far as both have come."""
        base = self.methods.get(self.baseline)
        if base is None or not base.steps:
            return {}
        return {
            name: running.update(base.outputs, self.methods[name].outputs, base.done and self.methods[name].done)
            for name, running in self._equality.items()
            if self.methods[name].steps
        }
