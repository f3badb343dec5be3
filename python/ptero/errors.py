"""What can go wrong. Every exception is an :class:`Error`, and where Python has a class for the same thing, that as well."""

__all__ = [
    "CallError",
    "DeviceError",
    "Error",
    "FileError",
    "LimitError",
    "ModelError",
    "NotFoundError",
    "PromptError",
    "SettingError",
    "StoppedError",
]


class Error(Exception):
    """Anything that ptero refuses, or that fails. The text is the Rust library's."""


class NotFoundError(Error, FileNotFoundError):
    """There is no such file, checkpoint or repository."""


class FileError(Error, OSError):
    """The disk or the network failed."""


class ModelError(Error, ValueError):
    """A program, a checkpoint or a file beside it is invalid or not supported."""


class SettingError(Error, ValueError):
    """A setting is invalid, or the program does not support it."""


class PromptError(Error, ValueError):
    """A prompt or a conversation is refused."""


class LimitError(Error, ValueError):
    """A text, a grammar or a file is larger than ptero allows."""


class CallError(Error, ValueError):
    """A method, a session or a chat cannot be called like this."""


class DeviceError(Error, RuntimeError):
    """A device is missing, or it failed."""


class StoppedError(Error, RuntimeError):
    """A text was stopped."""
