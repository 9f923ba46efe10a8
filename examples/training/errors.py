"""Why a program of the examples or of the tuning ends before it is done."""


class UsageError(ValueError):
    """An option or a setting that is wrong: it names it, and says what is allowed."""


class RunError(RuntimeError):
    """Why a run stopped, where its last good state is, and what can be done."""


class DivergedError(RunError):
    """A loss or a weight that is not finite: the settings' doing, not the machine's."""


class RecordError(RunError):
    """A file that is no record, with its path and what is wrong with it."""


class LockedError(RunError):
    """Another process is at work where this one wants to be."""
