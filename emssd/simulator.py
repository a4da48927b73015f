"""A batch decoded without a model: the real layouts, driven by invented drafts and verdicts, write ordinary traces.

Every view, every count and every export works on such a trace; it says of itself that it is simulated, and its seconds
are 0. A row's t-th step is the same in every method, so the outputs are equal too. The texts are words drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

from emssd import __version__
from emssd.acceptance import MAX_BATCH, Acceptance, Ints, Trajectories, check_whole, draw_rows
from emssd.config import SpeculativeConfig
from emssd.errors import ConfigError
from emssd.model_presets import model_named
from emssd.model_shape import ModelShape
from emssd.run_counts import check_method
from emssd.scripted_run import ScriptedRow, ScriptedStep, drive
from emssd.trace import GenerationTrace, RequestTrace

WORDS: tuple[str, ...] = (
    *("the", "a", "of", "and", "to", "in", "it", "was", "on", "at", "by", "with"),
    *("from", "near", "over", "under", "red", "blue", "green", "small", "large", "old", "new", "cold"),
    *("warm", "quiet", "river", "house", "tree", "stone", "road", "light", "door", "window", "garden", "table"),
    *("book", "letter", "song", "cloud", "field", "hill", "boat", "bird", "horse", "market", "bridge", "clock"),
    *(
        "candle",
        "winter",
        "summer",
        "morning",
        "evening",
        "walks",
        "finds",
        "keeps",
        "opens",
        "holds",
        "carries",
        "turns",
    ),
    *("waits", "asks", "tells", "reads", "writes", "sees", "hears", "leaves", "comes", "goes", "stays", "slowly"),
    *("often", "never", "again", "once", "still", "soon", "here", "there", "then"),
)
FIRST_ID = 10  # ids below it are left to special tokens


def simulate(
    acceptance: Acceptance,
    batch_size: int,
    methods: Sequence[str],
    seed: int,
    shape: ModelShape | None = None,
    model_name: str = "opt-6.7b",
    dtype: str | None = None,
) -> dict[str, GenerationTrace]:
    """Decode one invented batch with several methods.

    Args:
        acceptance: how rows behave.
        batch_size: rows, 1 to 256.
        methods: command-line names.
        seed: the same seed gives the same rows.
        shape: sizes of the model that the trace speaks of; None: the preset `model_name`.
        model_name: what the trace calls it.

    Returns:
        For each method a trace, valid for `GenerationTrace.from_json`; attention "simulated", seconds 0.

    Raises:
        ConfigError: a setting is out of range or unknown, or prompts and outputs do not fit the model.
    """
    check_whole("batch_size", batch_size, 1, MAX_BATCH)
    for method in methods:
        check_method(method)
    shape = model_named(model_name) if shape is None else shape
    rows = script_rows(acceptance, draw_rows(acceptance, batch_size, seed), seed, shape)
    model = {**_model(shape, model_name), **({"dtype": dtype} if dtype else {})}
    traces = {}
    for method in methods:
        config = SpeculativeConfig.for_method(
            method,
            num_draft_tokens=acceptance.num_draft_tokens,
            max_new_tokens=acceptance.output_tokens,
            eos_token_ids=(),
            seed=seed,
        )
        scripted = rows if config.drafts else [row.one_by_one() for row in rows]
        traces[method] = _run(config, scripted, model, acceptance)
    return traces


def script_rows(acceptance: Acceptance, rows: Trajectories, seed: int, shape: ModelShape) -> list[ScriptedRow]:
    """Token ids for invented rows: accepted drafts equal the output, the first wrong draft does not.

    Raises:
        ConfigError: prompts and outputs do not fit the model's context, or it has too few tokens.
    """
    if shape.vocab < FIRST_ID + 2:
        raise ConfigError(f"A simulated model needs a vocabulary of {FIRST_ID + 2} tokens or more, not {shape.vocab}.")
    longest = int(rows.prompt_lengths.max(initial=0))
    if shape.positions and longest + rows.decoded > shape.positions:
        raise ConfigError(
            f"A prompt of {longest} tokens and {acceptance.output_tokens} output tokens do not fit the model's "
            f"{shape.positions} positions: lower prompt_max or output_tokens."
        )
    last = min(shape.vocab, FIRST_ID + len(WORDS)) - 1
    return [
        _script_row(Random(f"{seed} {row}"), last, int(length), rows.drafted[:, row], rows.gained[:, row])
        for row, length in enumerate(rows.prompt_lengths)
    ]


def _script_row(draw: Random, last: int, prompt_length: int, drafted: Ints, gained: Ints) -> ScriptedRow:
    def tokens(count: int) -> list[int]:
        return [draw.randint(FIRST_ID, last) for _ in range(count)]

    prompt, output = tokens(prompt_length), tokens(1 + int(gained.sum()))
    steps, done = [], 1
    for drafts, gain in zip(drafted.tolist(), gained.tolist(), strict=True):
        if not gain:
            break
        right = output[done : done + gain]
        proposed, answers = tokens(drafts), right + tokens(drafts + 1 - gain)
        proposed[: gain - 1] = right[:-1]
        if gain <= drafts and proposed[gain - 1] == right[-1]:
            proposed[gain - 1] = right[-1] + 1 if right[-1] < last else FIRST_ID
        steps.append(ScriptedStep(proposed, answers, gain))
        done += gain
    return ScriptedRow(prompt, output, steps)


def _model(shape: ModelShape, name: str) -> dict[str, Any]:
    """The model as a trace describes it."""
    return {
        "name": name,
        "architecture": "simulated",
        "dtype": {1: "float8", 2: "float16", 8: "float64"}.get(shape.bytes_per_value, "float32"),
        "device": "simulated",
        "parameters": shape.parameters,
        "layers": shape.layers,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "value_head_dim": shape.value_head_dim,
        "hidden": shape.hidden,
        "intermediate": shape.intermediate,
        "expert_intermediate": shape.expert_intermediate,
        "vocab": shape.vocab,
        "tied_embeddings": shape.tied_embeddings,
        "pad_token_id": 0,
        **({"experts": shape.experts, "experts_per_token": shape.experts_per_token} if shape.experts else {}),
        **({"context_length": shape.positions} if shape.positions else {}),
        **{name: value for name, value in _weights(shape).items() if value},
        **_windows(shape),
    }


def _weights(shape: ModelShape) -> dict[str, int]:
    """What sizes alone do not say; 0 where they do."""
    return {
        "linear_weights_per_row": shape.measured_linear_weights,
        "head_weights": shape.measured_head_weights,
        "expert_weights": shape.measured_expert_weights,
        "latent_width": shape.latent_width,
    }


def _windows(shape: ModelShape) -> dict[str, Any]:
    windows = shape.windows or (None,) * shape.layers
    return {
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": next((window for window in windows if window is not None), None),
    }


def _empty_trace(
    config: SpeculativeConfig, rows: Sequence[ScriptedRow], model: dict[str, Any], acceptance: Acceptance
) -> GenerationTrace:
    """A trace that has its requests and no steps."""
    return GenerationTrace(
        config=config.to_dict(),
        method=config.method,
        drafter={"name": "invented", **acceptance.to_dict()} if config.drafts else {"name": "none"},
        attention="simulated",
        model=dict(model),
        rows=[RequestTrace(row.prompt, words(row.prompt), row.output, words(row.output), "length") for row in rows],
        tokens={str(FIRST_ID + place): f" {word}" for place, word in enumerate(WORDS)} | {"0": "<pad>"},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        emssd_version=__version__,
    )


def _run(
    config: SpeculativeConfig, rows: Sequence[ScriptedRow], model: dict[str, Any], acceptance: Acceptance
) -> GenerationTrace:
    """Drive one method's layout to the end of all rows."""
    trace = _empty_trace(config, rows, model, acceptance)
    drive(trace, config, rows)
    return trace


def words(token_ids: Sequence[int]) -> str:
    """The text of invented tokens."""
    return "".join(f" {WORDS[token - FIRST_ID]}" for token in token_ids)
