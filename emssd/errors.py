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
