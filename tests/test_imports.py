"""What may import what: light modules stay light, and every file imports only files above it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import emssd

PACKAGE = Path(emssd.__file__).parent
HEAVY = ("torch", "streamlit", "plotly", "transformers")

# The lessons' files, in the same manner. They need no torch; what they share comes first, then a check for each lesson.
LESSONS = [
    "catalog",
    "text",
    "export",
    "checking",
    "states",
    "progress",
    "command",
    "answers",
    "toy",
    "batches",
    "own_batch",
    "cut_batch",
    "toy_trace",
    "faulty_runs",
    "broken_runs",
    "broken_traces",
    "broken_words",
    "ems_batch",
    "ems_cases",
    "price_points",
    "price_curves",
    "ablation_regimes",
    "run_metrics",
    *[f"check_{number:02d}" for number in range(1, 11)],
]
# A file imports only files above it. The app's files come last and may import each other without a circle.
ORDER = [
    "errors",
    "config",
    "layouts",
    "model_shape",
    "accounting",
    "trace",
    "work",
    "trace_checking",
    "trace_reading",
    "trace_diff",
    "cells",
    "hardware",
    "step_counts",
    "cost_model",
    "model_weights",
    "model_config",
    "model_presets",
    "acceptance",
    "window_counts",
    "run_counts",
    "window_expectation",
    "row_law",
    "expectation",
    "expected_speeds",
    "paper",
    "scripted_run",
    "simulator",
    "simulation",
    "token_text",
    "counters_csv",
    "chrome_trace",
    "prompts",
    "output_files",
    "result_files",
    "draft_scripts",
    "kv_cache",
    "attention",
    "verification",
    "model_runner",
    "random_models",
    "embedded",
    "measured_machine",
    "machines",
    "self_check",
    "language_model",
    "loading",
    "memory",
    "request",
    "drafting",
    "invariants",
    "recorder",
    "trace_building",
    "profiling",
    "decoding",
    "prefilled",
    "acceptance_replay",
    "oracle",
    "comparing",
    "calibration",
    "replaying",
    "random_weights",
    "transformers_baseline",
    "bench_plan",
    "bench_state",
    "bench_results",
    "bench_model",
    "bench_figure",
    "benchmark",
    "bench_inputs",
    "streaming",
    "calibrating",
    "session",
    "reporting",
    "doctor",
    "viewing",
    "bench_reporting",
    "paper_report",
    "simulation_report",
    "simulating",
    "benching",
    *[f"lessons.{name}" for name in LESSONS],
    "commands",
    "arguments",
    "__main__",
]
# Imports inside functions, or for type checkers alone, that go against the order on purpose.
LAZY = {
    ("trace", "trace_reading"),  # reading is needed by from_json only, and it needs the classes of trace
    ("invariants", "decoding"),  # for types: the checker looks at the run that calls it
    ("invariants", "request"),
}
LIGHT = ["", *ORDER[: ORDER.index("prompts") + 1], *[f"lessons.{name}" for name in LESSONS]]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(path: Path) -> set[tuple[str, bool]]:
    """(module of this package, whether the import is inside a function or for type checkers alone)."""
    found = set()

    def visit(node: ast.AST, lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            inside = inside or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
            if isinstance(child, ast.ImportFrom) and child.level:
                raise AssertionError(f"{path.name} line {child.lineno}: relative import, say from emssd...")
            if isinstance(child, ast.ImportFrom) and (child.module or "").split(".")[0] == "emssd":
                for alias in child.names:
                    name = f"{child.module}.{alias.name}".removeprefix("emssd.")
                    owner = name if name in FILES else (child.module or "").removeprefix("emssd").lstrip(".")
                    found.add((owner, inside))
            elif isinstance(child, ast.Import):
                names = [alias.name for alias in child.names if alias.name.split(".")[0] == "emssd"]
                found.update((name.removeprefix("emssd").lstrip("."), inside) for name in names)
            visit(child, inside)

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def is_ui(name: str) -> bool:
    return name.split(".")[0] == "ui"


def test_the_order_names_every_file_once():
    core = [name for name in FILES if name not in ("", "lessons") and not is_ui(name)]
    assert sorted(core) == sorted(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_a_file_imports_only_files_above_it(name):
    above = set(ORDER[: ORDER.index(name)])
    for other, lazy in sorted(imports_of(FILES[name])):
        if other == "":  # the package itself: its version, and lazy names
            continue
        assert not is_ui(other) or lazy, f"{name} imports the app"
        allowed = other in above or is_ui(other) or (lazy and (name, other) in LAZY)
        assert allowed, f"{name} imports {other}, which is not above it"


def test_the_exceptions_are_real_and_lazy():
    """An exception that nobody needs any more must go."""
    used = {(name, other) for name in ORDER for other, lazy in imports_of(FILES[name]) if lazy}
    assert used >= LAZY


def test_the_app_has_no_circle_of_imports():
    edges = {
        name: {o for o, lazy in imports_of(path) if not lazy and is_ui(o) and o != "ui"} for name, path in FILES.items()
    }
    ready: set[str] = set()
    waiting = {name for name in FILES if is_ui(name)}
    while waiting:
        free = {name for name in waiting if edges[name] <= ready}
        assert free, f"a circle among {sorted(waiting)}"
        ready |= free
        waiting -= free


def roots_of(name: str) -> set[str]:
    """Top-level packages that a file imports anywhere."""
    nodes = list(ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))))
    roots = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return roots | {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


def test_only_the_app_imports_streamlit_and_plotly():
    for name in FILES:
        if not is_ui(name) and name != "doctor":  # the doctor asks for versions
            assert not roots_of(name) & {"streamlit", "plotly"}, f"emssd/{name}.py"


@pytest.mark.parametrize("name", ["layouts", "trace", "trace_checking", "trace_reading", "accounting", "cells"])
def test_pure_files_do_not_import_torch_even_lazily(name):
    assert not roots_of(name) & set(HEAVY)


def python(code: str) -> str:
    """What a fresh interpreter prints, with the package that is under test."""
    path = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_light_modules_load_nothing_heavy():
    """`import emssd` and what reads traces and layouts: neither torch nor streamlit nor plotly nor transformers."""
    modules = [f"emssd.{name}".rstrip(".") for name in LIGHT]
    code = f"""
import importlib
for name in {modules!r}:
    importlib.import_module(name)
    loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]
    assert not loaded, (name, loaded)
print("light")
"""
    assert python(code) == "light"


def test_reading_a_trace_and_its_cells_loads_nothing_heavy(tmp_path):
    from emssd import SpeculativeConfig, generate
    from tests.helpers import language_model

    path = tmp_path / "run.json"
    generate(language_model("random-llama"), [[5], [6, 7]], SpeculativeConfig.vanilla(max_new_tokens=4)).to_json(path)
    code = f"""
import emssd
from emssd.cells import iter_cells
trace = emssd.GenerationTrace.from_json({str(path)!r})
assert emssd.SpeculativeConfig().method == "ems-sd"
assert list(iter_cells(trace)) and trace.summary()["tokens"] == 8
print([heavy for heavy in {HEAVY!r} if heavy in sys.modules])
"""
    assert python(code) == "[]"


def test_the_packages_names_are_lazy_complete_and_real():
    assert set(dir(emssd)) >= set(emssd.__all__)
    for name in emssd.__all__:
        assert getattr(emssd, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        emssd.nothing  # noqa: B018
    promised = (
        *("load_model", "SpeculativeConfig", "PromptLookupDrafter", "DraftModelDrafter", "ScriptedDrafter"),
        *("generate", "generate_steps", "GenerationTrace", "StepTrace"),
        *("EmssdError", "UnsupportedModelError", "PromptError", "ConfigError", "TraceError"),
    )
    assert set(promised) <= set(emssd.__all__)


def test_the_readme_maps_every_file_in_this_order() -> None:
    text = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## Map of the files") : text.index("## Cite")]
    names = re.findall(r"`(?:emssd/)?((?:lessons/)?\w+)\.py`", table)
    assert [name for name in names if name in ORDER] == [name for name in ORDER if not name.startswith("lessons.")]
    row = next(line for line in table.splitlines() if line.startswith("| `emssd/lessons/` |"))
    named = re.findall(r"`(\w+)\.py`", row)
    assert [name for name in LESSONS if not name.startswith("check_")] == named
