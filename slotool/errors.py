"""The exception tree. The library raises; only the command line turns an error into a sentence and an exit code.

::

    SlotoolError
    ├── InputError              what was given cannot be used (exit 2)
    │   ├── ArgumentError       an argument of a function has a value that it cannot have
    │   ├── TableError          a latency, outcome or request table; names file, row and column
    │   ├── ArtifactError       a bundle that is torn, altered, of another kind or version
    │   ├── DataError           a data set that is missing, corrupt or misshapen
    │   ├── GraphError          an operator graph or model that cannot be read or built
    │   ├── AlreadyExistsError  the output is there already
    │   ├── MissingPackageError a package of an optional extra is not installed
    │   └── PluginError         what an installed package adds to slotool cannot be used
    ├── RunError                the work itself failed (exit 3)
    │   └── WorkerError         a measuring or serving process died, hung or answered nonsense
    ├── PromiseBroken           the run is fine, its verdict is not: an SLO missed, a tolerance violated (exit 1)
    └── TimedOut                the time allowed ran out (exit 124)

An ``ArgumentError`` carries the name of its argument: Python prints that, the command line its option. Where a sentence
names another parameter, it does so as an option, ``--force``: in Python ``force=True``.

``SlotoolWarning`` is a Python warning: the work goes on, and something should not be missed.
"""

__all__ = [
    "AlreadyExistsError",
    "ArgumentError",
    "ArtifactError",
    "DataError",
    "GraphError",
    "InputError",
    "MissingPackageError",
    "PluginError",
    "PromiseBroken",
    "RunError",
    "SlotoolError",
    "SlotoolWarning",
    "TableError",
    "TimedOut",
    "WorkerError",
]


class SlotoolError(Exception):
    """Base of every error slotool raises on purpose; ``str(error)`` is one sentence for a person."""


class InputError(SlotoolError):
    """Unusable input: a file, option or argument."""


class ArgumentError(InputError):
    """A value that an argument cannot have. ``argument``: its name in Python; ``problem``: the sentence without it."""

    def __init__(self, argument: str, problem: str):
        super().__init__(f"{argument}: {problem}")
        self.argument, self.problem = argument, problem


class TableError(InputError):
    """A table file breaks its schema."""


class ArtifactError(InputError):
    """A bundle on disk cannot be trusted or is not what was asked for."""


class DataError(InputError):
    """A data set cannot be read."""


class GraphError(InputError):
    """An operator graph, or the model it should come from, cannot be read or built."""


class AlreadyExistsError(InputError):
    """The output exists and replacing it was not allowed."""


class MissingPackageError(InputError):
    """A package that an optional extra brings is not installed."""


class PluginError(InputError):
    """Plugin of an installed package that cannot be imported, or is not of the kind of its entry point."""


class RunError(SlotoolError):
    """The work failed for a reason that lies outside the input."""


class WorkerError(RunError):
    """A worker process died, hung or broke its protocol."""


class PromiseBroken(SlotoolError):
    """A measured promise (deadline, accuracy, tolerance) does not hold."""


class TimedOut(SlotoolError):
    """The time allowed for a job ran out."""


class SlotoolWarning(UserWarning):
    """Something that should not be missed, though the work goes on."""
