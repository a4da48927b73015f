"""The errors that users may meet. Every message names the row, the limit and the value, and says what to do."""


class EmssdError(Exception):
    """Base of every error raised on purpose by this package."""


class ConfigError(EmssdError):
    """A setting is unknown, out of range, or does not fit the model."""


class PromptError(EmssdError):
    """One or more prompts cannot be decoded."""


class TraceError(EmssdError):
    """A trace is damaged, too large, from a newer schema, or contradicts itself."""


class UnsupportedModelError(EmssdError):
    """The model cannot be decoded correctly through our attention function."""


class Terminated(KeyboardInterrupt):
    """The system asked the process to end (SIGTERM); what is kept on an interruption is kept."""


def shown(value: object) -> str:
    """A bad value as a message shows it: on one line, and short whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python does not print numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
