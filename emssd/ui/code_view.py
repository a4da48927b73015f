"""The code behind each sub-step: the real functions, read from the source files, with the lines that decide marked.

The sources are parsed, not imported, so that a page without a model needs no torch.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Function:
    """A function as it stands in a file.

    Args:
        file: path from the repository's root.
        name: qualified name, as "BatchLayout.plan".
        line: number of its first line in the file, a decorator's if it has one.
        lines: its source lines without the common indentation.
        statements: first and last line of each statement as indices into `lines`; of a compound one its head alone.
    """

    file: str
    name: str
    line: int
    lines: tuple[str, ...]
    statements: tuple[tuple[int, int], ...]

    def lines_of(self, text: str) -> list[int]:
        """Indices of the lines of the one statement that contains a text.

        Raises:
            LookupError: none or several lines contain it.
        """
        found = [number for number, line in enumerate(self.lines) if text in line]
        if len(found) != 1:
            raise LookupError(f"{self.file}: {self.name} has {len(found)} lines with {text!r}, not one.")
        around = [(first, last) for first, last in self.statements if first <= found[0] <= last]
        first, last = min(around, key=lambda span: span[1] - span[0])
        return list(range(first, last + 1))


@cache
def find_function(module: str, name: str) -> Function:
    """The function or method of that qualified name in a module of this package.

    Raises:
        LookupError: there is no such function.
    """
    path = PACKAGE / f"{module}.py"
    source = path.read_text(encoding="utf-8")
    node: ast.AST | None = ast.parse(source)
    for part in name.split("."):
        body = getattr(node, "body", [])
        node = next((each for each in body if getattr(each, "name", None) == part), None)
    if not isinstance(node, ast.FunctionDef):
        raise LookupError(f"emssd/{module}.py has no function {name}.")
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = textwrap.dedent("\n".join(source.splitlines()[first - 1 : node.end_lineno])).split("\n")
    statements = tuple(_span(child, first) for child in ast.walk(node) if isinstance(child, ast.stmt))
    return Function(f"emssd/{module}.py", name, first, tuple(lines), statements)


def _span(node: ast.stmt, first: int) -> tuple[int, int]:
    body = getattr(node, "body", None)
    last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
    return node.lineno - first, last - first


# sub-step -> module and function that runs
FUNCTIONS = {
    "draft": ("decoding", "GenerationRun._draft"),
    "pack": ("layouts", "BatchLayout.plan"),
    "write": ("kv_cache", "KVStore.write"),
    "attend": ("attention", "ems_attention"),
    "verify": ("verification", "verify_greedy"),
    "commit": ("layouts", "BatchLayout.commit"),
}


def deciding_texts(cache_layout: str, input_layout: str, drafts: bool, attention: str) -> dict[str, tuple[str, ...]]:
    """Sub-step -> pieces of the lines that make this layout what it is."""
    shared = cache_layout == "padded"
    kernels = [("sdpa", "out = F.scaled_dot_product_attention("), ("reference", "out = reference_attention(")]
    width = 'width = longest if self.inputs == "padded" else 0'
    holes = ('if self.cache == "padded" and not ended', "new_holes = tuple(", "row.next_slot += largest if")
    return {
        "draft": ("session.propose(", "check_ids(proposal") if drafts else ("if session is None:",),
        "pack": ("longest = max(", width) if input_layout == "padded" else (width,),
        "write": ("keys.index_copy_(", "values.index_copy_("),
        "attend": (
            "mask = step.mask(" if shared else "k, v = (_span(",
            *(call for kernel, call in kernels if kernel in attention),
        ),
        "verify": ("matches = ", "leading = ", "num_accepted = "),
        "commit": ("largest = max(", *holes) if shared else ("row.next_slot += gain if",),
    }


def code_of_layout(cache_layout: str, input_layout: str, drafts: bool, attention: str) -> dict[str, dict[str, Any]]:
    """For each sub-step the function that runs and the lines that decide, JSON-ready.

    Args:
        cache_layout, input_layout: as in a trace's config.
        drafts: whether the run has a drafter.
        attention: kernels that ran, as in a trace.

    Returns:
        Sub-step -> file, line (of the first), name, lines, active (indices into lines).
    """
    code = {}
    for sub, texts in deciding_texts(cache_layout, input_layout, drafts, attention).items():
        function = find_function(*FUNCTIONS[sub])
        active = sorted({number for text in texts for number in function.lines_of(text)})
        code[sub] = {
            "file": function.file,
            "line": function.line,
            "name": function.name,
            "lines": list(function.lines),
            "active": active,
        }
    return code
