"""Every member of ``keras.applications`` at once; one that fails costs itself, not the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from slotool.graphs.capture.keras.capture import capture_keras
from slotool.graphs.capture.loading import load_keras
from slotool.graphs.graph import OperatorGraph


class ApplicationGraphs(Iterator[OperatorGraph]):
    """The graphs of these members of ``keras.applications``, built one by one, each with its application's name.

    ``advance`` is called after each that was tried. ``failed`` maps those that could not be built or captured to the
    reason, one sentence.
    """

    def __init__(self, names: Sequence[str], advance: Callable[[], None] = lambda: None):
        self.failed: dict[str, str] = {}
        self._names, self._advance = iter(names), advance

    def __next__(self) -> OperatorGraph:
        for name in self._names:
            graph = self._captured(name)
            self._advance()
            if graph is not None:
                return graph
        raise StopIteration

    def _captured(self, name: str) -> OperatorGraph | None:
        import keras

        # Frees the model before, and names layers from the beginning: the same whichever came before.
        keras.utils.clear_session()
        try:
            return replace(capture_keras(load_keras(name)), name=name)
        except Exception as error:
            # Keras, its backend and the layers between them raise what they like.
            words = " ".join(str(error).split())[:200]
            self.failed[name] = f"{type(error).__name__}: {words}" if words else type(error).__name__
            return None
