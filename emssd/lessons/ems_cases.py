"""Batches for the check of lesson 8, each row decoded alone and without any cache, and the same batch in every layout.

What a row drafts, what the target answers and what it emits follows from the row's own text: no batch, no slot and no
cursor is involved, so this is what any layout must come to. The layouts' traces are then read back cell by cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from emssd.config import SPECULATIVE_METHODS
from emssd.lessons.batches import Script, run_script
from emssd.lessons.ems_batch import EOS_TOKEN, FIRST_TOKEN, NUM_TOKENS, BatchRow, LookupDrafter, PackedModel
from emssd.scripted_run import ScriptedRow, ScriptedStep
from emssd.trace import GenerationTrace

DRAFTERS = ("prompt lookup", "a draft model", "a draft model that is always right")
MAX_ROWS = 8


@dataclass(frozen=True)
class Case:
    """One batch.

    Args:
        seed: gives the case again.
        prompts: [B] token ids; all of different lengths.
        max_new_tokens: where rows end.
        draft_lengths: K of step 1, 2, ...; from the last one on it starts again.
        drafter: one of `DRAFTERS`.
        eos: whether the models can end a text.
    """

    seed: int
    prompts: list[list[int]]
    max_new_tokens: int
    draft_lengths: tuple[int, ...]
    drafter: str
    eos: bool

    def num_draft_tokens(self, step: int) -> int:
        """K of a decode step, counted from 1."""
        return self.draft_lengths[(step - 1) % len(self.draft_lengths)]

    def target(self) -> PackedModel:
        """The target model, its caches empty."""
        return PackedModel(len(self.prompts), self.seed, eos=self.eos)

    def draft_model(self) -> PackedModel | None:
        """The draft model, its caches empty; None for prompt lookup."""
        if self.drafter == DRAFTERS[0]:
            return None
        error_rate = 0.15 if self.drafter == DRAFTERS[1] else 0.0
        return PackedModel(len(self.prompts), self.seed, error_rate, self.eos)

    def start(self) -> list[BatchRow]:
        """The rows after prefill."""
        rows = []
        for index, (prompt, scripted) in enumerate(zip(self.prompts, self.expected, strict=True)):
            length = len(prompt)
            first = scripted.output[0]
            finished = not scripted.steps
            rows.append(BatchRow(index, length, self.max_new_tokens, [*prompt, first], length, length, finished))
        return rows

    @cached_property
    def expected(self) -> list[ScriptedRow]:
        """[B] each row alone: its whole output, and its steps."""
        return [self._alone(prompt) for prompt in self.prompts]

    def _alone(self, prompt: list[int]) -> ScriptedRow:
        target, draft_model = self.target(), self.draft_model()
        output = [target.choose(prompt)]
        steps: list[ScriptedStep] = []
        while output[-1] != EOS_TOKEN and len(output) < self.max_new_tokens:
            limit = min(self.num_draft_tokens(len(steps) + 1), self.max_new_tokens - len(output) - 1)
            drafts = _drafts([*prompt, *output], limit, draft_model)
            answers = [target.choose([*prompt, *output, *drafts[:place]]) for place in range(len(drafts) + 1)]
            gained = _gained(drafts, answers)
            steps.append(ScriptedStep(drafts, answers, gained))
            output += answers[:gained]
        return ScriptedRow(prompt, output, steps)

    @cached_property
    def traces(self) -> dict[str, GenerationTrace] | None:
        """The batch in each of the four layouts; None where a row ends with its first token."""
        if not all(row.steps for row in self.expected):
            return None
        vocab = FIRST_TOKEN + NUM_TOKENS
        script = Script(tuple(self.expected), vocab, max(self.draft_lengths), self.max_new_tokens)
        return {method: run_script(script, method) for method in SPECULATIVE_METHODS}


def _drafts(text: list[int], limit: int, draft_model: PackedModel | None) -> list[int]:
    """What is drafted after `text` where nothing is missing in the draft model's cache."""
    if draft_model is None:
        return LookupDrafter.copy(text)[:limit]
    drafts: list[int] = []
    for _ in range(limit):
        drafts.append(draft_model.choose([*text, *drafts]))
    return drafts


def _gained(drafts: Sequence[int], answers: Sequence[int]) -> int:
    """Tokens that a row emits: kept drafts and one more, unless a kept one ends the text."""
    for place, draft in enumerate(drafts):
        if draft != answers[place] or draft == EOS_TOKEN:
            return place + 1
    return len(drafts) + 1


def make_case(seed: int) -> Case:
    """Draw a batch: the seed also decides its size (1 to 8 rows) and its drafter.

    Every sixth may have rows that end with their first token; such a batch has no traces.
    """
    attempt = 0
    while True:
        case = _draw_case(seed, attempt)
        if seed % 6 == 5 or all(row.steps for row in case.expected):
            return case
        attempt += 1


def _draw_case(seed: int, attempt: int) -> Case:
    draw = Random(f"lesson 8 {seed} {attempt}")
    few = draw.randint(4, 9)
    words = draw.sample(range(FIRST_TOKEN, FIRST_TOKEN + NUM_TOKENS), few)  # few words, so that they come again
    lengths = draw.sample(range(2, 2 + 2 * MAX_ROWS), 1 + seed % MAX_ROWS)
    prompts = [[draw.choice(words) for _ in range(length)] for length in lengths]
    most = draw.randint(2, 5)
    draft_lengths = (most,) if seed % 2 else (most, most, 0, 1, most)
    return Case(seed, prompts, draw.randint(6, 20), draft_lengths, DRAFTERS[seed % 3], eos=seed % 5 > 0)


def layout_outputs(trace: GenerationTrace, target: PackedModel) -> list[list[int]]:
    """[B] what the target answers when every query reads the cells that this trace's layout shows to it.

    Args:
        trace: of any layout, with holes, pads and slots that are no positions.
        target: the model of the same batch.
    """
    written: list[dict[int, tuple[int, int]]] = [{} for _ in trace.rows]  # slot -> (position, token)
    visible: list[list[int]] = [[] for _ in trace.rows]
    outputs: list[list[int]] = [[] for _ in trace.rows]
    for step in trace.steps:
        for row in step.rows:
            cells, slots = written[row.row], visible[row.row]
            fed = zip(row.slots, zip(row.position_ids, row.input_token_ids, strict=True), strict=False)
            cells.update(fed)
            gained = len(row.slots) if row.kind == "prefill" else row.num_emitted
            judged = range(len(row.slots) - 1, len(row.slots)) if row.kind == "prefill" else range(gained)
            for place in judged:
                readable = sorted(cells[slot] for slot in [*slots, *row.slots[: place + 1]])
                outputs[row.row].append(target.choose([token for _, token in readable]))
            slots += row.slots[:gained]
    return outputs
