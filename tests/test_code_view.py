"""The code that the player shows is the code that runs, and the marked lines are found in it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from itertools import product
from pathlib import Path

import pytest

import emssd
from emssd.attention import ems_attention
from emssd.cells import SUBSTEPS
from emssd.config import SpeculativeConfig
from emssd.decoding import GenerationRun
from emssd.kv_cache import KVStore
from emssd.layouts import make_layout
from emssd.ui.code_view import code_of_layout, find_function
from emssd.verification import verify_greedy
from tests.helpers import METHODS5
from tests.test_cells import run_of

ROOT = Path(emssd.__file__).resolve().parent.parent
CACHES, INPUTS = ("padded", "ragged"), ("padded", "packed")
LAYOUTS = [(*each, drafts) for *each, drafts in product(CACHES, INPUTS, (True, False))]


def running(cache: str, inputs: str) -> dict:
    """Sub-step -> the object that runs for a layout."""
    layout = make_layout(SpeculativeConfig(cache_layout=cache, input_layout=inputs))
    return {
        "draft": GenerationRun._draft,
        "pack": type(layout).plan,
        "write": KVStore.write,
        "attend": ems_attention,
        "verify": verify_greedy,
        "commit": type(layout).commit,
    }


@pytest.mark.parametrize(("cache", "inputs", "drafts"), LAYOUTS)
@pytest.mark.parametrize("attention", ["sdpa-batched+sdpa-rows", "reference"])
def test_file_line_and_text_are_those_of_the_running_code(cache, inputs, drafts, attention):
    code = code_of_layout(cache, inputs, drafts, attention)
    assert tuple(code) == SUBSTEPS
    for sub, runs in running(cache, inputs).items():
        shown = code[sub]
        lines, first = inspect.getsourcelines(runs)
        assert (ROOT / shown["file"]).samefile(inspect.getsourcefile(runs))
        assert (shown["line"], shown["name"]) == (first, runs.__qualname__)
        assert "\n".join(shown["lines"]) + "\n" == textwrap.dedent("".join(lines))
        assert shown["active"] == sorted(set(shown["active"]))
        assert shown["active"]
        assert all(0 < number < len(shown["lines"]) for number in shown["active"])
        assert all(shown["lines"][number].strip() for number in shown["active"])


def marked(cache: str, inputs: str, sub: str, drafts: bool = True, attention: str = "sdpa-rows") -> str:
    shown = code_of_layout(cache, inputs, drafts, attention)[sub]
    return "\n".join(shown["lines"][number].strip() for number in shown["active"])


@pytest.mark.parametrize("inputs", INPUTS)
def test_marked_lines_of_a_commit_differ_by_the_cache(inputs):
    assert "new_holes = tuple(" in marked("padded", inputs, "commit")
    assert "row.next_slot += largest" in marked("padded", inputs, "commit")
    assert marked("ragged", inputs, "commit") == 'row.next_slot += gain if self.cache == "ragged" else 0'


def test_marked_lines_follow_kernel_inputs_and_drafter():
    assert "mask = step.mask(" in marked("padded", "padded", "attend")
    assert "mask" not in marked("ragged", "packed", "attend").split("\n")[0]
    assert "scaled_dot_product_attention" in marked("ragged", "packed", "attend")
    assert "reference_attention" in marked("ragged", "packed", "attend", attention="reference")
    assert "longest = max(" in marked("padded", "padded", "pack")
    assert "longest = max(" not in marked("padded", "packed", "pack")
    assert "propose" in marked("ragged", "packed", "draft")
    assert marked("padded", "padded", "draft", drafts=False) == "if session is None:"


@pytest.mark.parametrize("method", METHODS5)
def test_every_marked_line_runs(method):
    """A run with rejections and a finished row goes over all the lines that are marked for it."""
    config = SpeculativeConfig.for_method(method)
    codes = {runs.__code__ for runs in running(config.cache_layout, config.input_layout).values()}
    ran: set[tuple[str, int]] = set()

    def in_function(frame, event, argument):
        if event == "line":
            ran.add((frame.f_code.co_qualname, frame.f_lineno))
        return in_function

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: in_function if frame.f_code in codes else None)
    try:
        trace = run_of.__wrapped__(method)
    finally:
        sys.settrace(before)
    shown = code_of_layout(config.cache_layout, config.input_layout, method != "greedy", trace.attention)
    for sub, code in shown.items():
        missing = [code["lines"][n] for n in code["active"] if (code["name"], code["line"] + n) not in ran]
        assert not missing, sub


def test_a_statement_over_several_lines_is_marked_whole():
    function = find_function("layouts", "BatchLayout._plan_live")
    span = function.lines_of("num_drafted=len(drafts)")
    assert function.lines[span[0]].strip() == "return RowPlan("
    assert function.lines[span[-1]].strip() == ")"


@pytest.mark.parametrize("text", ["no such text", "row"])
def test_a_text_that_is_not_on_one_line_is_refused(text):
    with pytest.raises(LookupError, match=r"BatchLayout\.commit has \d+ lines with"):
        find_function("layouts", "BatchLayout.commit").lines_of(text)
    with pytest.raises(LookupError, match=r"emssd/layouts.py has no function Nothing.commit"):
        find_function("layouts", "Nothing.commit")


def test_reading_the_code_needs_no_torch():
    program = "import sys; from emssd.ui.code_view import code_of_layout; " \
        "code_of_layout('ragged', 'packed', True, 'sdpa'); print('torch' in sys.modules)"  # fmt: skip
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "False"
