"""Text and progress while a run goes on, for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

from emssd.trace import GenerationTrace

# what an unfinished multi-byte character decodes to
REPLACEMENT = "\ufffd"


class TextStream:
    """Turns a growing text into pieces that never cut a character; the pieces together are the final text.

    A character may be split over several tokens: until its last one is there, decoding ends in a replacement
    character, which is held back.
    """

    def __init__(self) -> None:
        self.written = ""

    def grow(self, text: str, last: bool = False) -> str:
        """The piece to write, given all the text so far; `last` lets go of what was held back."""
        ready = text if last else text.rstrip(REPLACEMENT)
        if not ready.startswith(self.written):  # the tokenizer took back what it had shown
            if not last:
                return ""
            self.written = ready
            return f"\n{ready}"
        piece = ready[len(self.written) :]
        self.written = ready
        return piece


def progress_bar(total: int, quiet: bool, unit: str = "tok", done: int = 0) -> Any:
    """A tqdm bar on stderr; none where stderr is no terminal or `quiet` is set. `done` was done before."""
    hidden = quiet or not sys.stderr.isatty()
    return tqdm(total=total, initial=done, unit=unit, file=sys.stderr, disable=hidden, leave=False)


class TextPrinter:
    """Prints the outputs of a run: a row alone token by token, several rows each when it ends.

    Args:
        names: [rows] how each row is called.
        write: takes pieces of text.
        alone: there is only one row in all.
    """

    def __init__(self, names: list[int], write: Callable[[str], None], alone: bool) -> None:
        self.names, self.write = names, write
        self.stream = TextStream() if alone else None
        self.printed = [False] * len(names)

    def show(self, trace: GenerationTrace, ended: bool = False) -> None:
        """Print what is new in the trace; `ended` prints what unfinished rows have as well."""
        for row, request in enumerate(trace.rows):
            text = request.output_text
            if text is None:
                text = " ".join(map(str, request.output_token_ids))
            last = ended or request.finish_reason is not None
            if self.printed[row]:
                continue
            if self.stream is not None:
                self.write(self.stream.grow(text, last) + ("\n" if last else ""))
            elif last:
                self.write(f"[{self.names[row]}] {text}\n")
            self.printed[row] = last


def writer(bar: Any, file: TextIO | None = None) -> Callable[[str], None]:
    """Writes text to stdout without tearing a progress bar on the same terminal."""

    def write(piece: str) -> None:
        out = file or sys.stdout
        if not piece:
            return
        if bar.disable:
            out.write(piece)
            out.flush()
        else:
            tqdm.write(piece, file=out, end="")

    return write
