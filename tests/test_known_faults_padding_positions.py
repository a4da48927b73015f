"""Known faults of padding, positions and packing: wrong positions, rows that see each other, rows that see nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest
import torch

from emssd import PromptError, SpeculativeConfig, generate
from emssd.attention import StepAttention
from emssd.drafting import DraftModelDrafter
from emssd.kv_cache import KVStore
from emssd.layouts import StepPlan, make_layout, prefill_plan
from emssd.model_runner import ModelRunner
from tests.helpers import (
    ALL_METHODS,
    SPECULATIVE,
    accepted_counts,
    assert_lossless,
    batch,
    greedy,
    language_model,
    plain_logits,
    prompt_ids,
    same,
    script,
)
from tests.spies import stores

__all__ = ["stores"]
ARCHITECTURES = ["opt", "gpt2", "llama", "qwen3", "glm4", "gptj", "gemma3", "mistral"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def config_of(method: str, k, n: int, **settings) -> SpeculativeConfig:
    return SpeculativeConfig.for_method(method, num_draft_tokens=k, max_new_tokens=n, **settings)


def close(ours: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Largest difference at most `tolerance` of the largest value (at least of 1)."""
    return float((ours - right).abs().max()) <= tolerance * max(1.0, float(right.abs().max()))


# --- positions per row ---


@pytest.mark.parametrize(("name", "method"), list(product(ARCHITECTURES, ["vanilla", "ems-sd"])))
def test_a_batched_answer_equals_the_single_one(name, method):
    """Missing per-row positions: prompts of 1, 2 and 9 tokens with another model's drafts equal each prompt alone."""
    lm = language_model(f"random-{name}")
    drafter = DraftModelDrafter(language_model(f"random-{name}", seed=5))
    assert_lossless(lm, batch(lm, "1-2-9", 10), config_of(method, 2, 10), drafter)


@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_around_a_prompt_are_ordinary_tokens(side):
    """Padded prompts: our API takes rows of different lengths and nothing else. Ids of the pad token inside a prompt
    are tokens like others, on either side, and are neither skipped nor masked."""
    lm = language_model("random-llama")
    pad, text = [0] * 3, prompt_ids(5)
    padded = [*pad, *text] if side == "left" else [*text, *pad]
    assert lm.pad_token_id == 0
    for method in ("vanilla", "ems-sd"):
        assert_lossless(lm, [padded, text, [0], [0, 0]], config_of(method, 2, 8), same(lm))
    assert greedy(lm, padded, 8) != greedy(lm, text, 8)


def test_a_rectangular_batch_is_refused_not_guessed_at():
    """A padded tensor says nothing about which ids are pads: refused, with the row named."""
    lm = language_model("random-llama")
    with pytest.raises(PromptError, match="Row 0: a prompt is a text or a list of token ids"):
        generate(lm, torch.tensor([[0, 0, 5], [5, 6, 7]]), config_of("ems-sd", 2, 4))


# --- private position offsets ---


def packed_rows(lm, depths, counts, shift=0):
    """Prefill rows to `depths`, then feed `counts` tokens of each, packed; `shift` moves every position of the second
    forward. Returns the packed logits by row, and what the plain model says."""
    texts = [prompt_ids(depth + count, salt) for salt, (depth, count) in enumerate(zip(depths, counts, strict=True))]
    runner, store = ModelRunner(lm.hooked), KVStore([len(text) for text in texts], fill=float("nan"))
    runner.forward(prefill_plan([(row, 0, text[: depths[row]]) for row, text in enumerate(texts)]), store)
    plan = prefill_plan([(row, depths[row], text[depths[row] :]) for row, text in enumerate(texts)])
    moved = [replace(row, position_ids=tuple(p + shift for p in row.position_ids)) for row in plan.rows]
    logits = runner.forward(StepPlan(tuple(moved)), store)
    right = [plain_logits(lm, text)[depths[row] :] for row, text in enumerate(texts)]
    return logits.split(list(counts)), right


def test_learned_position_offset_is_left_to_the_model():
    """OPT adds 2 to every learned position by itself: packed rows of 4, 1 and 6 tokens at other depths are right;
    our own +2 on top is not, and the test would see it."""
    lm = language_model("random-opt")
    ours, right = packed_rows(lm, [3, 7, 12], [4, 1, 6])
    assert all(close(mine, theirs) for mine, theirs in zip(ours, right, strict=True))
    shifted, _ = packed_rows(lm, [3, 7, 12], [4, 1, 6], shift=2)
    choices = lambda rows: torch.cat([row.argmax(dim=-1) for row in rows])  # noqa: E731
    assert not torch.equal(choices(shifted), choices(right))


@pytest.mark.parametrize("name", ["opt", "gpt2", "llama", "gptj"])
def test_a_model_without_its_position_ids_gives_other_tokens(name):
    """Passing no positions makes transformers count 0..T-1 over the packed sequence: the sensitive models notice."""
    lm = language_model(f"random-{name}")
    texts = [prompt_ids(6, salt) for salt in range(3)]
    plan = prefill_plan([(row, 0, text) for row, text in enumerate(texts)])
    counted = iter(range(plan.num_fed))
    wrong = StepPlan(tuple(replace(row, position_ids=tuple(next(counted) for _ in row.slots)) for row in plan.rows))
    runner = ModelRunner(lm.hooked)
    right = torch.cat([plain_logits(lm, text) for text in texts])
    good, bad = (runner.forward(each, KVStore([6] * 3)) for each in (plan, wrong))
    assert close(good, right)
    assert not close(bad, right, 1e-2)
    if name in ("opt", "gpt2"):  # rotary positions are relative: a whole row may move
        assert not torch.equal(bad.argmax(dim=-1), right.argmax(dim=-1))


# --- rows that see each other ---


@pytest.mark.parametrize(("name", "cache"), list(product(["llama", "opt", "gemma3", "mistral"], ["ragged", "padded"])))
def test_packed_rows_do_not_leak_into_each_other(name, cache):
    """Cross-row leakage: other tokens and another cache in row 1 change no logit of rows 0 and 2."""
    lm = language_model(f"random-{name}")

    def decode(middle: list[int], poison: bool) -> list[torch.Tensor]:
        prompts = [prompt_ids(6, 1), middle, prompt_ids(3, 2)]
        layout = make_layout(SpeculativeConfig(cache_layout=cache, input_layout="packed"))
        lengths = [len(prompt) for prompt in prompts]
        store = KVStore(layout.capacities(lengths, [9] * 3, 4))
        runner, rows = ModelRunner(lm.hooked), layout.start(lengths)
        runner.prefill(prompts, store)
        if poison:
            store.poison(1, range(store.capacities[1]), 50.0)
        drafts = [[11, 12, 13], middle[-2:] + [14], [15, 16, 17]]
        logits = runner.forward(layout.plan(rows, [21, middle[0], 23], drafts), store)
        return list(logits.split([4, 4, 4]))

    clean, garbage = decode(prompt_ids(6, 3), False), decode(prompt_ids(6, 4), True)
    assert close(garbage[0], clean[0], 1e-6)
    assert close(garbage[2], clean[2], 1e-6)
    assert not close(garbage[1], clean[1], 1e-2)


# --- queries that see nothing ---


@pytest.mark.parametrize(
    ("name", "dtype", "method", "attention"),
    list(product(["gemma3", "llama"], DTYPES, ["vanilla", "ems-sd"], ["sdpa", "reference"])),
)
def test_no_nan_from_fully_masked_rows(name, dtype, method, attention, stores, monkeypatch):
    """A query that may see no key makes NaN, and 0 * NaN spreads: prompts of 1 and 30 tokens leave no NaN in any
    logit or anywhere in the cache, in any number format."""
    lm = language_model(f"random-{name}", dtype)
    logits = []
    forward = ModelRunner.forward
    monkeypatch.setattr(ModelRunner, "forward", lambda *args: logits.append(forward(*args)) or logits[-1])
    config = config_of(method, 3, 8, attention=attention)
    generate(lm, [prompt_ids(1), prompt_ids(30)], config, script([[5] * 9, [6] * 9], [[1], [2]], 97, 3))
    assert len(logits) >= 5
    assert all(part.isfinite().all() for part in logits)
    store = stores[-1]
    pools = [pool for layer in store.layers for row in (0, 1) for pool in store.read(layer, row, range(30))]
    assert all(pool.isfinite().all() for pool in pools)


# --- masks as wide as the cache; finish before write ---


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_mask_is_as_wide_as_the_slots_it_masks(method, monkeypatch):
    """A mask cut to the current call's columns shows padding from the second token on: checked each call."""
    lm, seen = language_model("random-gemma3"), []
    mask = StepAttention.mask

    def checked(step, index, window, dtype, device):
        made, group = mask(step, index, window, dtype, device), step.groups[index]
        ragged = all(row.key_positions is None for row in group.rows)
        first = max(min(r.position_ids[0] for r in group.rows) - window + 1, 0) if window and ragged else 0
        if made is not None:
            assert made.shape == (len(group.rows), 1, group.num_tokens, group.span - first)
            seen.append(made.shape)
        for row in group.rows:
            assert group.span == row.slots[-1] + 1
        return made

    monkeypatch.setattr(StepAttention, "mask", checked)
    assert_lossless(lm, batch(lm, [2, 20], 12), config_of(method, 3, 12), same(lm))
    assert len(seen) >= 4  # plain decoding on a ragged cache needs masks in prefill alone


@pytest.mark.parametrize("method", ALL_METHODS)
def test_order_of_finish_and_write_the_last_token_is_the_end_of_sequence_once(method):
    """A row that finishes first and is written afterwards would end in a pad: its end of sequence is there, once."""
    lm = language_model("random-llama")
    prompts = batch(lm, [2, 20], 12)
    eos = greedy(lm, prompts[0], 12)[3]
    trace = assert_lossless(lm, prompts, config_of(method, 2, 12), same(lm), eos=[eos])
    output = trace.rows[0].output_token_ids
    assert output[-1] == eos
    assert output.count(eos) == 1
    assert trace.rows[0].finish_reason == "eos"


# --- mixed drafts ---


@pytest.mark.parametrize("method", ["vanilla", "ems-sd"])
def test_mixed_drafts_permute_with_the_rows(method):
    """Rows with and without drafts, lengths 0, 3, 0 and 2, in all 24 orders: no result goes to another row."""
    lm, n, lengths = language_model("random-llama"), 9, (0, 3, 0, 2)
    prompts = batch(lm, [3, 7, 5, 9], 14)
    outputs = [greedy(lm, prompt, 14) for prompt in prompts]
    accepts = [[0], [2, 0, 3], [0], [1, 2]]
    wanted = None
    for order in permutations(range(4)):
        config = config_of(method, tuple(lengths[row] for row in order), n)
        drafter = script([outputs[row] for row in order], [accepts[row] for row in order], lm.vocab_size, 3)
        trace = generate(lm, [prompts[row] for row in order], config, drafter)
        assert [row.output_token_ids for row in trace.rows] == [outputs[row][:n] for row in order]
        counts = accepted_counts(trace)
        shown = {row: counts[place] for place, row in enumerate(order)}
        wanted = wanted or shown
        assert shown == wanted
    assert len(wanted[1]) < len(wanted[0]) == n - 1
    assert set(wanted[0]) == {0}


# --- the verification forward equals sequential ones ---


@pytest.mark.parametrize(("name", "method"), list(product(ARCHITECTURES, SPECULATIVE)))
def test_verifying_k_plus_one_tokens_equals_k_plus_one_single_calls(name, method):
    """The single most useful check: K + 1 tokens fed at once at depth L give the logits of K + 1 calls of one token,
    and of the plain model without a cache."""
    lm, depths, k = language_model(f"random-{name}"), [11, 4], 4
    texts = [prompt_ids(depth + 1 + k, salt) for salt, depth in enumerate(depths)]
    config = config_of(method, k, 20)

    def feed(sizes: list[int]) -> list[torch.Tensor]:
        layout = make_layout(config)
        store = KVStore(layout.capacities(depths, [20, 20], k), fill=0.0)
        runner, rows = ModelRunner(lm.hooked), layout.start(depths)
        runner.prefill([text[:depth] for text, depth in zip(texts, depths, strict=True)], store)
        parts: list[list[torch.Tensor]] = [[], []]
        for size in sizes:
            at = [row.cache_len for row in rows]
            feeds = [text[start : start + size] for text, start in zip(texts, at, strict=True)]
            plan = layout.plan(rows, [ids[0] for ids in feeds], [ids[1:] for ids in feeds])
            for part, logits in zip(parts, runner.forward(plan, store).split(size), strict=True):
                part.append(logits)
            layout.commit(rows, plan, [size, size], [False, False])
        return [torch.cat(part) for part in parts]

    at_once, one_by_one = feed([1 + k]), feed([1] * (1 + k))
    for row, text in enumerate(texts):
        assert close(at_once[row], one_by_one[row])
        assert close(at_once[row], plain_logits(lm, text)[depths[row] :])
