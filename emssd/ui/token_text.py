"""Token text as the page shows it; the rules are in `emssd.token_text`."""

from emssd.token_text import LONGEST, MARKS, escaped, visible

__all__ = ["LONGEST", "MARKS", "escaped", "visible"]
