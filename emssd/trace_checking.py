"""Whether a trace agrees with itself: layout, verdicts and account are computed again from its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from emssd.accounting import StepAccount, step_account
from emssd.config import SpeculativeConfig
from emssd.errors import ConfigError, TraceError
from emssd.layouts import Row, StepPlan, make_layout, output_limits, prefill_plan
from emssd.trace import GenerationTrace, RowTrace, StepTrace, finish_reason, next_kind, verdict


def read_config(data: dict[str, Any]) -> SpeculativeConfig:
    """The settings that a trace records. A draft length given by a callable reads as one that allows anything.

    Raises:
        TraceError: a setting is missing, unknown or out of range.
    """
    names = {field.name for field in fields(SpeculativeConfig)}
    known = {name: value for name, value in data.items() if name in names}
    if known.get("num_draft_tokens") == "callable":
        known["num_draft_tokens"] = _unknown_draft_length
    if isinstance(known.get("eos_token_ids"), list):
        known["eos_token_ids"] = tuple(known["eos_token_ids"])
    for name in ("cache_layout", "input_layout", "num_draft_tokens", "max_new_tokens"):
        if name not in known:
            raise TraceError(f"config.{name} is missing.")
    try:
        return SpeculativeConfig(**known)
    except (ConfigError, TypeError) as error:
        raise TraceError(f"config: {error}") from None


def _unknown_draft_length(row: int, step: int) -> int:
    return 1


def check_consistency(trace: GenerationTrace) -> None:
    """Run the trace's layout again over its drafts and emitted counts, and compare all that it shows.

    Rows keep all that they gained; where `config["keeps"]` is "minimum", just as much as the slowest live row gained.

    Raises:
        TraceError: names the first field that differs from what the layout says.
    """
    config = read_config(trace.config)
    _expect("method", trace.method, config.method)
    for step, plan, account in replay_layout(trace):
        for row, planned in zip(step.rows, plan.rows, strict=True):
            path = f"steps[{step.index}].rows[{row.row}]"
            for name in (
                "kind",
                "cache_start",
                "slots",
                "input_token_ids",
                "input_kinds",
                "position_ids",
                "num_drafted",
            ):
                shown, right = getattr(row, name), getattr(planned, name)
                _expect(f"{path}.{name}", shown, list(right) if isinstance(right, tuple) else right)
        for name, right in account.to_dict().items():
            _expect(f"steps[{step.index}].account.{name}", getattr(step.account, name), right)
    limits = _limits(trace, config)
    for index, request in enumerate(trace.rows):
        emitted = [token for step in trace.steps for token in step.rows[index].emitted_token_ids]
        _expect(f"rows[{index}].output_token_ids", request.output_token_ids, emitted)
        ended = bool(trace.steps) and trace.steps[-1].rows[index].finished
        eos = config.eos_token_ids if isinstance(config.eos_token_ids, tuple) else ()
        reason = finish_reason(emitted, config.max_new_tokens, limits[index], eos)
        reason = reason if ended or config.max_new_tokens == 0 else None
        _expect(f"rows[{index}].finish_reason", request.finish_reason, reason)
        _expect(f"rows[{index}].finish_reason", ended or config.max_new_tokens == 0, reason is not None)


def _limits(trace: GenerationTrace, config: SpeculativeConfig) -> list[int]:
    lengths = [len(row.prompt_token_ids) for row in trace.rows]
    return output_limits(lengths, config.max_new_tokens, trace.model.get("context_length"))


def _expect(path: str, shown: Any, right: Any) -> None:
    if shown != right:
        raise TraceError(f"{path} is {str(shown)[:80]}, but the rest of the trace says {str(right)[:80]}.")


def _check_ids(path: str, row: RowTrace, vocab: int) -> None:
    for name in ("input_token_ids", "target_token_ids"):
        largest = max(getattr(row, name), default=0)
        if largest >= vocab:
            raise TraceError(f"{path}.{name} holds the id {largest}, outside the vocabulary 0..{vocab - 1}.")


def _check_verdict(path: str, row: RowTrace, eos_token_ids: Sequence[int], most: int | None) -> None:
    """The accepted run, the target's own token and their counts must follow from drafts and target's answers.

    `most`: tokens that a row may keep of the step; None where it keeps all.
    """
    if row.draft_source is not None and not row.num_drafted:
        raise TraceError(f"{path}.draft_source is {row.draft_source}, but nothing was drafted.")
    if row.kind == "finished":
        for name, right in (("num_accepted", 0), ("num_emitted", 0), ("emitted_token_ids", []), ("next_kind", None)):
            _expect(f"{path}.{name}", getattr(row, name), right)
        _expect(f"{path}.target_token_ids", row.target_token_ids, [])
        return
    drafts = row.draft_token_ids
    _expect(f"{path}.num_drafted", row.num_drafted, len(drafts))
    _expect(f"{path}.target_token_ids", len(row.target_token_ids), 1 + row.num_drafted)
    accepted, emitted = verdict(row, eos_token_ids)
    if most is not None:
        accepted, emitted = min(accepted, most), min(emitted, most)
    _expect(f"{path}.num_accepted", row.num_accepted, accepted)
    _expect(f"{path}.num_emitted", row.num_emitted, emitted)
    _expect(f"{path}.emitted_token_ids", row.emitted_token_ids, row.target_token_ids[:emitted])
    _expect(f"{path}.next_kind", row.next_kind, next_kind(row.num_drafted, accepted, emitted))


def _check_top_tokens(path: str, row: RowTrace, vocab: int, most: int) -> None:
    """The target's best few: as many as judged positions, the emitted token first, known ids, rising gaps from 0."""
    ids, gaps = row.top_token_ids, row.top_logit_gaps
    if ids is None and gaps is None:
        return
    for name, value in (("top_token_ids", ids), ("top_logit_gaps", gaps)):
        if value is None:
            raise TraceError(f"{path}.{name} is missing: top_token_ids and top_logit_gaps go together.")
        _expect(f"{path}.{name}", f"{len(value)} positions", f"{row.num_emitted} positions")
    for place, (best, far) in enumerate(zip(ids or [], gaps or [], strict=True)):
        here = f"{path}.top_token_ids[{place}]"
        if not 1 <= len(best) <= most or len(set(best)) < len(best):
            raise TraceError(f"{here} must hold 1 to {most} different ids, as config.num_top_tokens says, not {best}.")
        if max(best) >= vocab:
            raise TraceError(f"{here} holds the id {max(best)}, outside the vocabulary 0..{vocab - 1}.")
        _expect(f"{here}[0]", best[0], row.target_token_ids[place])
        if len(far) != len(best) or far[0] != 0 or any(later < gap for gap, later in pairwise(far)):
            shown = str(far)[:80]
            raise TraceError(
                f"{path}.top_logit_gaps[{place}] must hold {len(best)} numbers that rise from 0, not {shown}."
            )


def _check_widths(path: str, step: StepTrace, config: SpeculativeConfig, places: Sequence[Row]) -> None:
    """Counts that decide how much the layout writes: checked first, so that a small file cannot ask for much memory."""
    live = [row for row, place in zip(step.rows, places, strict=True) if not place.finished]
    fed = max((1 + row.num_drafted for row in live), default=0)
    gain = max((row.num_emitted for row in live), default=0)
    for row, place in zip(step.rows, places, strict=True):
        where = f"{path}.rows[{row.row}]"
        _expect(f"{where}.kind", row.kind, "finished" if place.finished else "decode")
        most = 0 if place.finished else config.draft_length(row.row, step.index)
        if row.num_drafted > most and not callable(config.num_draft_tokens):
            raise TraceError(f"{where}.num_drafted is {row.num_drafted}, but config.num_draft_tokens allows {most}.")
        source = row.draft_source
        if source is not None and (not row.num_drafted or source + row.num_drafted > place.cache_len + 1):
            raise TraceError(
                f"{where}.draft_source is {source}, where the row has no {row.num_drafted} tokens to copy."
            )
        width = fed if config.input_layout == "padded" else 0 if place.finished else 1 + row.num_drafted
        _expect(f"{where}.input_token_ids", f"{len(row.input_token_ids)} tokens", f"{width} tokens")
        holes = gain - row.num_emitted if config.cache_layout == "padded" and not row.finished else 0
        _expect(f"{where}.holes_added", f"{len(row.holes_added)} slots", f"{holes} slots")


def replay_layout(trace: GenerationTrace) -> Iterator[tuple[StepTrace, StepPlan, StepAccount]]:
    """Each step with the plan and account that the trace's own layout gives for its drafts and emitted counts.

    Raises:
        TraceError: rows are missing or out of order, or cursors, cache lengths or holes differ from the layout's.
    """
    config = read_config(trace.config)
    lengths = [len(row.prompt_token_ids) for row in trace.rows]
    if trace.steps and not all(lengths):
        raise TraceError(f"rows[{lengths.index(0)}].prompt_token_ids is empty.")
    limits = _limits(trace, config)
    try:
        config.check_batch(len(lengths))
    except ConfigError as error:
        raise TraceError(f"config: {error}") from None
    layout = make_layout(config, trace.model.get("pad_token_id") or 0, with_masks=False)
    places = layout.start(lengths)
    most = config.max_draft_tokens
    eos = config.eos_token_ids if isinstance(config.eos_token_ids, tuple) else ()
    allocated = sum(layout.capacities(lengths, limits, max(limits, default=0) if most is None else most))
    for number, step in enumerate(trace.steps):
        path = f"steps[{number}]"
        _expect(f"{path}.index", step.index, number)
        _expect(f"{path}.kind", step.kind, "decode" if number else "prefill")
        _expect(f"{path}.rows", [row.row for row in step.rows], list(range(len(places))))
        gains = [verdict(row, eos)[1] for row in step.rows if row.kind != "finished"]
        most_kept = min(gains, default=0) if trace.cut else None
        for row in step.rows:
            _check_ids(f"{path}.rows[{row.row}]", row, trace.model["vocab"])
            _check_verdict(f"{path}.rows[{row.row}]", row, eos, most_kept)
            _check_top_tokens(f"{path}.rows[{row.row}]", row, trace.model["vocab"], config.num_top_tokens)
        if number == 0:
            plan = prefill_plan([(row, 0, trace.rows[row].prompt_token_ids) for row in range(len(places))])
            for place, row in zip(places, step.rows, strict=True):
                place.finished = row.finished
            new_holes: tuple[tuple[int, ...], ...] = ((),) * len(places)
        else:
            _check_widths(path, step, config, places)
            pending = [_pending(trace.steps[number - 1], row, path) for row in step.rows]
            plan = layout.plan(places, pending, [row.draft_token_ids for row in step.rows])
            emitted = [row.num_emitted for row in step.rows]
            new_holes = layout.commit(places, plan, emitted, [row.finished for row in step.rows]).holes
        for place, row in zip(places, step.rows, strict=True):
            where = f"{path}.rows[{row.row}]"
            _expect(f"{where}.next_slot", row.next_slot, place.next_slot)
            _expect(f"{where}.cache_len", row.cache_len, place.cache_len)
            _expect(f"{where}.holes_added", row.holes_added, list(new_holes[row.row]))
            _expect(f"{where}.finished", row.finished, place.finished)
        holes = sum(len(place.holes) for place in places)
        yield step, plan, step_account(plan, allocated, holes)


def _pending(before: StepTrace, row: RowTrace, path: str) -> int:
    if row.kind == "finished":
        return 0
    if not before.rows[row.row].emitted_token_ids:
        raise TraceError(f"{path}.rows[{row.row}] is decoded after a step in which it emitted nothing.")
    return before.rows[row.row].emitted_token_ids[-1]
