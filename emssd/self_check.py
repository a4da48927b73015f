"""The check at load: five gates that refuse a model which our attention would serve wrongly.

Without it BLOOM, Mamba, hybrids with convolutions and several rope kinds run and give wrong text, silently. The gates
stand cheapest first, and each catches what the later ones cannot see:

1. configuration: rules that need no forward, also for effects beyond the length of the probe;
2. hook: transformers really took our attention function;
3. coverage: every layer called it exactly once per forward;
4. arguments: it knows every argument, and each layer's sliding window is the configured one;
5. numbers: a ragged packed run in two steps gives the logits of the model's own eager attention.

Letters: T packed tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from emssd.attention import ATTENTION_NAME, AttentionCall, share_weights
from emssd.errors import UnsupportedModelError
from emssd.kv_cache import KVStore
from emssd.layouts import prefill_plan
from emssd.model_runner import ModelRunner

GATES = {1: "configuration", 2: "hook", 3: "coverage", 4: "arguments", 5: "numbers"}
# Rows of the probe: tokens fed in the first packed forward, then in the second.
PROBE = ((19, 4), (3, 6), (11, 6))
# Largest difference of a logit, as a share of the largest logit. Half precision itself moves logits by about 2 %.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}
LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


@dataclass(frozen=True)
class SelfCheckReport:
    """What the self-check measured on a model that passed.

    error: difference of logits as a share of the largest one (see `check_numbers`), at most `tolerance`.
    weak: the numbers are half precision, whose noise hides a small fault in one layer; float32 sees it.
    windows: sliding window of each layer in tokens, None = full attention.
    """

    architecture: str
    dtype: str
    error: float
    tolerance: float
    weak: bool
    windows: tuple[int | None, ...]
    seconds: float

    def __str__(self) -> str:
        note = " (weak: half precision hides small faults, check in float32)" if self.weak else ""
        return (
            f"{self.architecture} in {self.dtype}: logits agree to {self.error:.1e} of the largest, "
            f"limit {self.tolerance:.0e}{note}"
        )


def self_check(model: PreTrainedModel, hooked: PreTrainedModel, *, max_length: int | None = None) -> SelfCheckReport:
    """Run all gates on a plain model and its hooked copy; neither is changed.

    Args:
        max_length: longest row that will be decoded, in tokens; None takes the model's context length.

    Raises:
        UnsupportedModelError: names the architecture, the gate and the reason.
    """
    started = time.perf_counter()
    check_configuration(model, max_length)
    check_hook(model, hooked)
    rows = _probe_rows(context_length(model))
    texts = _probe_texts(model, [first + rest for first, rest in rows])
    packed, calls = _packed_logits(model, hooked, texts, [first for first, _ in rows])
    check_coverage(model, calls)
    check_arguments(model, calls)
    error = check_numbers(model, texts, packed)
    dtype = next(model.parameters()).dtype
    return SelfCheckReport(
        architecture=type(model).__name__,
        dtype=str(dtype).removeprefix("torch."),
        error=error,
        tolerance=_tolerance(dtype),
        weak=_is_weak(dtype),
        windows=tuple(layer_windows(model.config.get_text_config())),
        seconds=time.perf_counter() - started,
    )


def check_configuration(model: PreTrainedModel, max_length: int | None = None) -> None:
    """Gate 1: refuse what the configuration already shows: other memory than keys and values, other layer kinds,
    chunked attention, rotary frequencies that depend on the longest row of the pack, no positions to give."""
    config = model.config.get_text_config()
    longest = max_length or context_length(model)
    if getattr(model, "_is_stateful", False):
        _refuse(model, 1, "it keeps a recurrent state, which cannot be rolled back like a KV cache")
    if model.get_output_embeddings() is None:
        _refuse(model, 1, "it has no language-model head, so it cannot choose tokens: load it as a causal LM")
    if getattr(model.config, "is_encoder_decoder", False):
        _refuse(model, 1, "it is an encoder-decoder, not a causal language model")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        _refuse(model, 1, "its forward takes no position_ids, so packed rows would get wrong positions")
    other = sorted(
        {str(kind) for kind in getattr(config, "layer_types", None) or ()} - {"full_attention", "sliding_attention"}
    )
    if other:
        _refuse(
            model,
            1,
            f"it has layers of the kind {', '.join(other)}, which are not softmax attention over "
            "all or the last tokens",
        )
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and (longest is None or chunk < longest):
        _refuse(model, 1, f"its attention works in chunks of {chunk} tokens")
    for kind, original in _rope_kinds(config):
        if kind in LENGTH_DEPENDENT_ROPE and (longest is None or original is None or longest > original):
            _refuse(
                model,
                1,
                f"its rotary positions ({kind}) change once any row of the batch is longer than "
                f"{original} tokens, so rows would influence each other",
            )


def _rope_kinds(config: Any) -> list[tuple[str, int | None]]:
    """(rope type, length it was trained for) of every rope setting, which may be one or one per layer type."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in settings.values() if isinstance(value, dict)]
    found = []
    for rope in nested or [settings]:
        kind = rope.get("rope_type", rope.get("type", "default"))
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if original is None and kind == "dynamic":
            original = getattr(config, "max_position_embeddings", None)
        found.append((str(kind), original))
    return found


def check_hook(model: PreTrainedModel, hooked: PreTrainedModel) -> None:
    """Gate 2: some models only log a warning and keep their own attention; then nothing of ours would run."""
    if getattr(hooked.config, "_attn_implementation", None) != ATTENTION_NAME:
        _refuse(model, 2, "its attention cannot be replaced")


def check_coverage(model: PreTrainedModel, calls: list[list[AttentionCall]]) -> None:
    """Gate 3: in each forward every layer called our attention exactly once. `calls`: one list per forward."""
    layers = int(model.config.get_text_config().num_hidden_layers)
    for forward in calls:
        seen = Counter(call.layer_idx for call in forward)
        wrong = [layer for layer in {*range(layers), *seen} if seen[layer] != (1 if layer < layers else 0)]
        if wrong:
            layer = min(wrong)
            _refuse(model, 3, f"layer {layer} called our attention {seen[layer]} times instead of once per forward")


def check_arguments(model: PreTrainedModel, calls: list[list[AttentionCall]]) -> None:
    """Gate 4: each layer's sliding window is what the configuration says; the probe may be too short to show it.

    Unknown arguments are refused by the attention function itself, during the probe.
    """
    windows = layer_windows(model.config.get_text_config())
    for forward in calls:
        for call in forward:
            expected = windows[call.layer_idx]
            if call.sliding_window != expected:
                _refuse(
                    model,
                    4,
                    f"layer {call.layer_idx} asked for the sliding window {call.sliding_window}, "
                    f"but its configuration says {expected}",
                )


def layer_windows(config: Any) -> list[int | None]:
    """Sliding window of each layer in tokens (the token itself counts), None where it sees everything.

    config: a text configuration of transformers; `layer_types` decides, else `sliding_window` holds for all layers.
    """
    layers = int(config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return [window] * layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def check_numbers(model: PreTrainedModel, texts: list[list[int]], packed: list[Tensor]) -> float:
    """Gate 5: packed logits [tokens, V] of every row equal the model's own eager forward of that row alone.

    Returns the error as a share of the largest logit: the worst token's; in half precision the upper quartile's,
    because there a mixture of experts may rightly choose another expert for a few tokens.
    """
    eager = cast(PreTrainedModel, share_weights(model)).eval()
    eager.set_attn_implementation("eager")
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    gaps, scale = [], 1e-30
    with torch.inference_mode():
        for text, ours in zip(texts, packed, strict=True):
            positions = torch.arange(len(text), device=device)[None]
            ids = torch.tensor([text], device=device)
            own = eager(input_ids=ids, position_ids=positions, use_cache=False).logits[0].cpu().double()  # (tokens, V)
            gaps.append((ours.cpu().double() - own).abs().amax(dim=-1))
            scale = max(scale, float(own.abs().max()))
    errors = torch.cat(gaps).nan_to_num(nan=float("inf")) / scale  # (tokens of all rows,)
    error = float(errors.quantile(0.75, interpolation="higher") if _is_weak(dtype) else errors.max())
    if not error <= _tolerance(dtype) or errors.isinf().any():
        worst, limit = float(errors.max()), _tolerance(dtype)
        reason = f"packed logits differ from its own attention by {worst:.1e} of the largest, allowed are {limit:.0e}"
        _refuse(model, 5, reason)
    return error


def _packed_logits(
    model: PreTrainedModel, hooked: PreTrainedModel, texts: list[list[int]], firsts: list[int]
) -> tuple[list[Tensor], list[list[AttentionCall]]]:
    """Feed the rows packed, the first `firsts` tokens of each and then the rest, into a cache full of NaN.

    Returns per row its logits [tokens, V], and per forward the attention calls.
    """
    runner = ModelRunner(hooked)
    store = KVStore([len(text) for text in texts], fill=float("nan"))
    spans = [[(0, first) for first in firsts], [(first, len(text)) for first, text in zip(firsts, texts, strict=True)]]
    pieces: list[list[Tensor]] = [[] for _ in texts]
    calls = []
    for step in spans:
        fed = [(row, start, texts[row][start:end]) for row, (start, end) in enumerate(step) if end > start]
        if not fed:
            continue
        plan = prefill_plan(fed)
        try:
            logits = runner.forward(plan, store)  # (T, V)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"{type(model).__name__} is not supported: {error} (gate 4, {GATES[4]})"
            ) from error
        except Exception as error:  # whatever a foreign forward raises on packed input
            _refuse_broken(model, texts[0], error)
        calls.append(runner.last_calls)
        parts = logits.split([len(tokens) for _, _, tokens in fed])
        for (row, _, _), part in zip(fed, parts, strict=True):
            pieces[row].append(part)
    return [torch.cat(row) for row in pieces], calls


def _refuse_broken(model: PreTrainedModel, text: list[int], error: Exception) -> NoReturn:
    """Say whether the packing or the model itself is what fails, for example for want of a kernel in this format."""
    dtype, reason = str(next(model.parameters()).dtype).removeprefix("torch."), str(error).strip().split("\n")[0]
    plain = share_weights(model).eval()
    try:
        with torch.inference_mode():
            plain(input_ids=torch.tensor([text], device=next(model.parameters()).device), use_cache=False)
    except Exception:  # whatever a foreign forward raises
        raise UnsupportedModelError(
            f"{type(model).__name__} does not run in {dtype} here, not even without our attention "
            f"({reason}): use another dtype."
        ) from error
    _refuse(model, 3, f"its forward failed on packed rows, {type(error).__name__}: {reason}")


def _probe_rows(limit: int | None) -> list[tuple[int, int]]:
    """Tokens of each row in the first and the second forward, cut to the model's context length."""
    rows = []
    for first, rest in PROBE:
        total = first + rest if limit is None else min(first + rest, limit)
        first = max(min(first, total - 1), 1)
        rows.append((first, total - first))
    return rows


def _probe_texts(model: PreTrainedModel, lengths: list[int]) -> list[list[int]]:
    """Random ids, the same every time, inside the vocabulary."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    stream = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=stream).tolist() for length in lengths]


def context_length(model: PreTrainedModel) -> int | None:
    """Positions that the model can be fed: learned table or trained rotary range; None if there is no limit."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, 5e-2)


def _is_weak(dtype: torch.dtype) -> bool:
    return _tolerance(dtype) > 1e-3


def _refuse(model: PreTrainedModel, gate: int, reason: str) -> NoReturn:
    raise UnsupportedModelError(f"{type(model).__name__} is not supported: {reason} (gate {gate}, {GATES[gate]}).")
