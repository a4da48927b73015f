"""Traces for the tests of what leaves the program: all recorded ones, the paper's worked example, and a hostile one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from emssd.config import METHODS, SpeculativeConfig
from emssd.decoding import generate
from emssd.trace import GenerationTrace
from tests.helpers import greedy, language_model, prompt_ids, script

TRACES = Path(__file__).resolve().parent.parent / "assets" / "traces"

HOSTILE = [
    "<script>window.hit = 1</script>",
    '<img src=x onerror="window.hit = 1">',
    "</script><script>window.hit = 1</script>",
    "<!--<script>",
    "]]>&lt;b&gt;&amp;",
    "\u202eevil\u202c \u200f\u2066x",
    "👩‍💻🏳️‍🌈",
    "line\nbreak\r\ttab\x00\x1b[31m",
    "\u2028\u2029",
    "half \ud83d surrogate \udc00",
    "\ufffd\ufffd",
    "=cmd()",
    ' +1";=2',
    "@SUM(A1)",
    "-1",
    "'\"`${window.hit = 1}",
]
"""Texts that a page, a script, a spreadsheet or a terminal could take for more than text."""


RECORDED = sorted(str(path.relative_to(TRACES)) for path in TRACES.rglob("*.json") if path.stem in METHODS)
"""Every recorded trace, as a path below assets/traces."""


@cache
def recorded(path: str) -> GenerationTrace:
    """One of `RECORDED`; not to be changed."""
    return GenerationTrace.from_json(TRACES / path)


@cache
def scripted_run(method: str) -> GenerationTrace:
    """The paper's worked example on a random model: prompts 5 and 3, drafts 5/2 then 2/5, accepted 3/0 then 1/5."""
    lm = language_model("random-llama")
    prompts = [prompt_ids(5, 0), prompt_ids(3, 1)]
    outputs = [greedy(lm, prompt, 16) for prompt in prompts]
    lengths = ((5, 2), (2, 5))

    def lengths_of(row: int, step: int) -> int:
        return lengths[min(step, 2) - 1][row]

    config = SpeculativeConfig.for_method(method, num_draft_tokens=lengths_of, max_new_tokens=9, eos_token_ids=())
    return generate(lm, prompts, config, script(outputs, [[3, 1], [0, 5]], lm.vocab_size, 5))


def hostile_trace(method: str = "ems-sd") -> GenerationTrace:
    """A real run whose tokens, prompts and outputs are renamed to `HOSTILE` texts."""
    trace = GenerationTrace.from_json(scripted_run(method).to_json())
    ids = {
        token for step in trace.steps for row in step.rows for token in (*row.input_token_ids, *row.target_token_ids)
    }
    trace.tokens = {str(token): HOSTILE[place % len(HOSTILE)] for place, token in enumerate(sorted(ids))}
    for number, row in enumerate(trace.rows):
        row.prompt_text, row.output_text = HOSTILE[number], "".join(HOSTILE)
    return trace
