"""The errors a caller can expect. Each message names the thing, the value and the remedy, in one line."""

__all__ = ["ModelError", "OptionError", "SlipstreamError"]


class SlipstreamError(Exception):
    """Base of every error that Slipstream raises on purpose. The command line prints it as a line and exits with 2."""


class ModelError(SlipstreamError):
    """A model, its file or its tokenizer can't be used: missing, damaged, unsupported, or not fitting its partner."""


class OptionError(SlipstreamError, ValueError):
    """An option or a request has a value that can't be honoured."""
