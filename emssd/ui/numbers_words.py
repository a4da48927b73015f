"""Sentences of the page "Numbers": answers with the numbers that the model computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emssd.acceptance import MAX_BATCH
from emssd.config import METHOD_TITLES
from emssd.expected_speeds import LONGEST_DRAFT, Ranges
from emssd.hardware import Hardware, memory_needed
from emssd.model_shape import ModelShape
from emssd.simulation_report import range_words, slower_words
from emssd.ui.numbers_own import is_own, own_model
from emssd.ui.numbers_settings import KERNELS, Settings, dtype_of

TABLE_NOTE = "The paper’s Table 2 orders the two middle rows the other way from its own caption. Shown here: our model."
SLOTS_NOTES = {
    "per_token": "thousand KV slots per step and layer, as often as they are read: two launches count twice. Modelled",
    "varlen": "thousand KV slots per step and layer, each row’s read once. Modelled",
}
"""What the bars of slots count, by kernel."""
WHY = (
    "Table 2 has a row with only the KV cache unpadded and a row with only the inputs unpadded. As printed, unpadded "
    "inputs gain more; the caption says that the KV cache matters more. Two things can be meant by that: the rows’ "
    "names are exchanged, or the caption is wrong. With prompts of realistic spread, and costs that one GPU can have, "
    "the model fits the exchanged names better. That is no proof: which half gains more depends on the prompts."
)
UPPER = {"opt": "OPT", "llama": "Llama", "qwen3": "Qwen3", "smollm2": "SmolLM2"}


def model_title(name: str) -> str:
    """ "opt-6.7b" as people write it: "OPT-6.7B"; of a model of one's own its name."""
    if is_own(name):
        return own_model(name).title
    family, _, size = name.partition("-")
    return f"{UPPER.get(family, family)}-{size.upper()}"


def sizes(shape: ModelShape) -> str:
    """A model's sizes in one line: "7.25 B parameters, 32 layers, 8 of 32 heads cached, window 4,096 in 16 layers"."""
    unit, words = (1e9, "B") if shape.parameters >= 1e9 else (1e6, "M")
    said = [f"{shape.parameters / unit:.3g} {words} parameters", f"{shape.layers} layers"]
    said.append(
        "keys and values compressed" if shape.latent_width else f"{shape.kv_heads} of {shape.heads} heads cached"
    )
    if shape.experts:
        said.append(f"{shape.experts_per_token} of {shape.experts} experts")
    windows = [window for window in shape.windows if window is not None]
    return ", ".join([*said, *([f"window {windows[0]:,} in {len(windows)} layers"] if windows else [])])


def room_words(settings: Settings) -> str:
    """A sentence where prompts are cut at the model's positions; "" where they are not."""
    room = settings.prompt_room
    return "" if room is None else f"Cut at {room:,} tokens: the model has {settings.shape.positions:,} positions."


def figures(machine: Hardware) -> str:
    """Peak rates of a machine: "312 TFLOP/s, 2.04 TB/s"."""
    return f"{machine.flops(dtype_of(machine)) / 1e12:.3g} TFLOP/s, {bandwidth(machine)}"


def bandwidth(machine: Hardware) -> str:
    """Bytes per second in a unit that fits."""
    return (
        f"{machine.bandwidth / 1e12:.3g} TB/s" if machine.bandwidth >= 1e12 else f"{machine.bandwidth / 1e9:.3g} GB/s"
    )


def fit_words(errors: Mapping[int, Sequence[float]]) -> str:
    """How far the lines are from the paper's points, batch by batch."""
    every = [error for found in errors.values() for error in found]
    means = {batch: sum(found) / len(found) for batch, found in errors.items()}
    worst = max(means, key=means.__getitem__)
    return (
        f"our model, expected values: {percent(sum(every) / len(every))} mean error at these {len(every)} points, "
        f"batch {worst} fits worst ({percent(means[worst])})"
    )


def percent(share: float) -> str:
    """A share as people read it: "3.6 %", "47 %", "over 1000 %"."""
    if share > 10:
        return "over 1000 %"
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"


def ablation_words(settings: Settings, factors: Mapping[str, float], equal: Mapping[str, float]) -> str:
    """Which half of EMS-SD gains more: with these prompts, and with equal ones.

    Args:
        factors: speed-up of the two halves at the settings' batch.
        equal: the same with prompts of one length.
    """

    def said(found: Mapping[str, float]) -> str:
        inputs, cache = found["packed-input"], found["ragged-cache"]
        winner = "the ragged cache gains more" if cache > inputs else "packed inputs gain more"
        return f"packed input only {inputs:.2f}×, ragged cache only {cache:.2f}×, so {winner}"

    return (
        f"At batch {settings.batch} with these prompts: {said(factors)}. With equal prompts of {settings.mean} tokens: "
        f"{said(equal)}."
    )


def below(slower: Mapping[str, Ranges], shown: int) -> str:
    """The sentence in the area where not speculating is faster; "" where no method gets there up to batch `shown`."""
    found = {name: tuple(ends for ends in ranges if ends[0] <= shown) for name, ranges in slower.items()}
    said = [f"{_lower(name)} {_short(ranges)}" for name, ranges in found.items() if ranges]
    return f"Slower than not speculating: {', '.join(said)}" if said else ""


def _short(ranges: Ranges) -> str:
    """Ranges beside a method's name; the last one that goes on for ever needs no "on"."""
    return range_words(ranges).removesuffix(" on")


def _lower(name: str) -> str:
    return METHOD_TITLES[name] if name == "ems-sd" else METHOD_TITLES[name].lower()


def falls_answer(slower: Mapping[str, Ranges]) -> str:
    """At which batches each method is below greedy; in the words of the command line where one recovers."""
    vanilla, ems = slower["vanilla"], slower["ems-sd"]
    if any(ranges and (len(ranges) > 1 or ranges[-1][1] < MAX_BATCH) for ranges in (vanilla, ems)):
        return f"Vanilla {slower_words(vanilla)}. EMS-SD {slower_words(ems)}."
    if not vanilla and not ems:
        return f"Never, up to batch {MAX_BATCH}. Nor does EMS-SD."
    never = f"never, up to batch {MAX_BATCH}"
    said = range_words(vanilla) if vanilla else never
    return f"{said[0].upper()}{said[1:]}. EMS-SD: {range_words(ems) if ems else never}."


def best_answer(settings: Settings, best: Mapping[str, tuple[int, float]]) -> str:
    """The best draft length of each method at the settings' batch."""
    (length, gain), (other, other_gain) = [(drafts(best[name][0]), best[name][1]) for name in ("ems-sd", "vanilla")]
    slower = "" if other_gain >= 1 else ", so not speculating is faster"
    return (
        f"K = {length} at batch {settings.batch}: EMS-SD {gain:.2f}×. Vanilla K = {other}: {other_gain:.2f}×{slower}."
    )


def drafts(length: int) -> str:
    """A best draft length; the longest that is tried may not be the best of all."""
    return f"{length}+" if length == LONGEST_DRAFT else f"{length}"


def varlen_answer(slower: Mapping[str, Ranges]) -> str:
    """What changes when a row's keys and values are read once."""
    if not slower["vanilla"]:
        return "With varlen attention vanilla no longer falls below greedy: padding costs rows, not whole re-reads."
    return f"With varlen attention vanilla still falls below greedy, {range_words(slower['vanilla'])}."


def points_words(settings: Settings) -> str:
    """What the points are, or why there are none."""
    if not settings.is_papers:
        return "no points: the paper’s are for OPT-6.7B on its own GPU, which it does not name"
    if settings.kernel != "per_token":
        return "paper’s points, faint: measured with its own kernel"
    rows = {"hidden": "", "swapped": " and Table 2 with its ablation rows swapped"}
    return f"paper, Figure 1{rows.get(settings.labels, ' and Table 2 with its ablation rows as printed')}"


def attention_words(times: Mapping[str, tuple[float, float]]) -> str:
    """What attention takes of each method's (attention, whole step) milliseconds; the roofline shows the rest."""
    said = [f"{attention:.3g} of {_lower(name)}’s {step:.3g} ms" for name, (attention, step) in times.items()]
    return f"Each method’s point is its dense layers alone. Attention takes {', '.join(said)} a step."


def memory_words(settings: Settings) -> str:
    """A sentence where weights and the padded cache of the batch do not fit into the machine's memory."""
    machine, slots = settings.machine, settings.acceptance.cache_slots(settings.batch, padded=True)
    needed = memory_needed(settings.shape, dtype_of(machine), slots)
    if machine.memory_bytes is None or needed <= machine.memory_bytes:
        return ""
    return (
        f"Not vanilla’s batch of {settings.batch}: weights and its cache of {slots / 1000:,.0f} thousand slots need "
        f"{needed / 1e9:,.0f} GB of {machine.memory_bytes / 1e9:,.0f} GB."
    )


def headline(settings: Settings) -> str:
    """One line for the folded controls."""
    return (
        f"{settings.machine.title} · {model_title(settings.model)} · {KERNELS[settings.kernel].lower()} · "
        f"{settings.hit:g} % found, {settings.token:g} % accepted, K = {settings.length} · "
        f"prompts {settings.mean} ± {settings.spread} tokens"
    )
