"""Speed of the engine on the embedded model: paired, interleaved, medians with quartiles. `make bench` runs it.

Compares, in one process and in turn: our greedy loop with transformers' batched generate, and EMS-SD with vanilla.
Decode time only: prefill and the token it gives are outside every figure. Exit 1 where a floor is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning workers slow everything down beside a busy process

import torch
from tqdm import tqdm
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from emssd import GenerationTrace, SpeculativeConfig, load_model
from emssd.decoding import GenerationRun, generate_steps
from emssd.loading import LanguageModel
from emssd.prompts import default_prompts

GREEDY_FLOOR = 0.95
EMS_SD_FLOOR = 1.3
TRACE_SHARE_CEILING = 0.05


class StepClock(StoppingCriteria):
    """Notes the time after every token of transformers' generate."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def transformers_seconds(lm: LanguageModel, prompts: list[list[int]], max_new_tokens: int) -> float:
    """Decode seconds of batched generate: from the first token to the last, prompts padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[lm.pad_token_id] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    clock = StepClock()
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=None, pad_token_id=lm.pad_token_id
    )
    with torch.inference_mode():
        lm.model.generate(
            ids.to(lm.device),
            attention_mask=mask.to(lm.device),
            generation_config=settings,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
    return clock.times[-1] - clock.times[0]


def our_trace(lm: LanguageModel, prompts: list[list[int]], config: SpeculativeConfig) -> tuple[GenerationTrace, float]:
    """A run, and the share of its decode seconds that went into building the trace."""
    run = generate_steps(lm, prompts, config)
    building = [0.0]
    record: Callable[..., Any] = run.builder.record

    def timed_record(*arguments: Any) -> Any:
        began = time.perf_counter()
        step = record(*arguments)
        if step.kind == "decode":
            building[0] += time.perf_counter() - began
        return step

    run.builder.record = timed_record  # type: ignore[method-assign]
    for _ in run:
        pass
    assert isinstance(run, GenerationRun)
    return run.trace, building[0] / run.trace.summary()["seconds"]["total"]


def quartiles(values: list[float]) -> str:
    """Median with the lower and upper quartile."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} [{low:.2f} .. {high:.2f}]"


def bench_greedy(lm: LanguageModel, texts: list[str], repeats: int, max_new_tokens: int) -> bool:
    """Our greedy loop against transformers' generate at batch 1, 4 and 8."""
    good = True
    config = SpeculativeConfig.greedy(max_new_tokens=max_new_tokens, eos_token_ids=())
    for batch_size in (1, 4, 8):
        prompts = [lm.encode(text) for text in texts[:batch_size]]
        ratios, ours, theirs = [], [], []
        for repeat in tqdm(range(repeats + 1), desc=f"greedy, batch {batch_size}", disable=not sys.stderr.isatty()):
            tokens = batch_size * (max_new_tokens - 1)
            reference = transformers_seconds(lm, prompts, max_new_tokens)
            trace, _ = our_trace(lm, prompts, config)
            if repeat:
                ours.append(tokens / trace.summary()["seconds"]["total"])
                theirs.append(tokens / reference)
                ratios.append(ours[-1] / theirs[-1])
        good &= statistics.median(ratios) >= GREEDY_FLOOR
        print(
            f"greedy, batch {batch_size}: ours {quartiles(ours)} tok/s, transformers {quartiles(theirs)} tok/s, "
            f"ratio {quartiles(ratios)} (floor {GREEDY_FLOOR})",
            flush=True,
        )
    return good


def bench_ems_sd(lm: LanguageModel, texts: list[str], repeats: int, max_new_tokens: int) -> bool:
    """EMS-SD against vanilla and greedy at batch 8 on copy-rich prompts; outputs must agree."""
    prompts = [lm.encode(text) for text in texts[:8]]
    configs = {
        name: SpeculativeConfig.for_method(name, max_new_tokens=max_new_tokens)
        for name in ("greedy", "vanilla", "ems-sd")
    }
    speeds: dict[str, list[float]] = {name: [] for name in configs}
    shares: list[float] = []
    outputs: dict[str, list[list[int]]] = {}
    for repeat in tqdm(range(repeats + 1), desc="copy-rich, batch 8", disable=not sys.stderr.isatty()):
        for name, config in configs.items():
            trace, share = our_trace(lm, prompts, config)
            outputs[name] = [row.output_token_ids for row in trace.rows]
            if repeat:
                speeds[name].append(trace.summary()["tokens_per_second"])
                shares.append(share)
    same = outputs["greedy"] == outputs["vanilla"] == outputs["ems-sd"]
    for name, values in speeds.items():
        print(f"copy-rich, batch 8, {name}: {quartiles(values)} tok/s")
    ratios = [ours / vanilla for ours, vanilla in zip(speeds["ems-sd"], speeds["vanilla"], strict=True)]
    for name in ("vanilla", "ems-sd"):
        against = [speed / greedy for speed, greedy in zip(speeds[name], speeds["greedy"], strict=True)]
        print(f"{name} vs greedy (padded cache): {quartiles(against)}")
    print(f"ems-sd vs vanilla: {quartiles(ratios)} (floor {EMS_SD_FLOOR}); outputs identical: {same}")
    print(f"building the trace: {100 * statistics.median(shares):.2f} % of a step (ceiling {TRACE_SHARE_CEILING:.0%})")
    fast = statistics.median(ratios) >= EMS_SD_FLOOR
    return fast and same and statistics.median(shares) < TRACE_SHARE_CEILING


def main() -> int:
    """Run both parts and say whether every floor was met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    lm = load_model("smollm2-135m", dtype="float32")
    print(f"{lm.name}, {lm.dtype}, {lm.device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    mixed = [entry.prompt for entry in default_prompts()]
    copy_rich = [entry.prompt for entry in default_prompts("copy_rich")]
    good = bench_greedy(lm, mixed, arguments.repeats, arguments.max_new_tokens)
    good &= bench_ems_sd(lm, copy_rich, arguments.repeats, arguments.max_new_tokens)
    print("every floor met" if good else "A FLOOR WAS MISSED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
