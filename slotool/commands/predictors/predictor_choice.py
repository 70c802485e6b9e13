"""Choice of the predictors that are trained, and progress of their training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotool import devices
from slotool.commands.inputs import as_list
from slotool.commands.progress import Reporter
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.plugins import Registry
    from slotool.predictors.base import Asked, Predictor
    from slotool.predictors.labels import LabelledSet
    from slotool.predictors.splits import RowSplit
    from slotool.predictors.training.selection import TrainingRun

# Numbers of hidden layers that the DNN tries; the paper's range.
DEPTHS = tuple(range(1, 21))


def names_among(
    asked: str | Sequence[str], known: Sequence[str], argument: str, *, plugins: Registry[Any] | None = None
) -> list[str]:
    """Return the names of a sequence or a comma list, each once.

    Raises ``ArgumentError`` for one that is neither known nor a plugin's.
    """
    names = list(dict.fromkeys(as_list(asked)))
    for name in names:
        if name not in known and not (plugins and name in plugins.plugins):
            others = plugins.plugins if plugins else []
            raise ArgumentError(argument, f"{name!r} is none of {', '.join([*known, *others])}")
    return names


def predictor_makers(
    names: Sequence[str],
    depths: Sequence[int],
    *,
    colocated: bool = False,
    device: str = devices.CPU,
) -> dict[str, Callable[[], Predictor[Any]]]:
    """By name, what makes a new predictor; the DNN searches ``depths``. The DNN and the graph network, which torch
    trains, do so on ``device``. Raises ``ArgumentError`` for a depth below 1, and for a device other than ``cpu`` where
    neither is among them."""
    from slotool.predictors.registry import predictor_class
    from slotool.predictors.solo.dnn import DnnPredictor
    from slotool.predictors.solo.graph_network import GraphNetworkPredictor

    if not depths or min(depths) < 1:
        raise ArgumentError("depths", "a depth is a whole number of hidden layers, at least 1")

    on_device: dict[str, Callable[[], Predictor[Any]]] = {
        DnnPredictor.name: lambda: DnnPredictor(depths, device=device),
        GraphNetworkPredictor.name: lambda: GraphNetworkPredictor(device=device),
    }
    if devices.is_cuda(device) and not on_device.keys() & set(names):
        raise ArgumentError("training_device", f"{', '.join(names)} train on the CPU only; leave it out")
    return {name: on_device.get(name) or predictor_class(name, colocated=colocated) for name in names}


def trained_and_scored(
    reporter: Reporter,
    candidates: Sequence[Predictor[Asked]],
    labelled: LabelledSet[Asked],
    split: RowSplit,
    protocols: Mapping[str, Sequence[RowSplit]] | None = None,
    *,
    model: str | Sequence[str],
    seed: int,
) -> TrainingRun[Asked]:
    """``train_and_score``, saying how far it is."""
    from slotool.predictors.training.selection import train_and_score

    text = f"training on {len(split.train)} {'networks' if protocols is None else 'co-locations'}"
    # Of networks alone the last step holds out kinds of them for the interval of the one that is kept.
    extra = 1 if protocols is None else len(protocols) * len(candidates)
    with reporter.progress(text, total=extra + sum(candidate.fit_steps for candidate in candidates)) as progress:

        def finished(what: str) -> None:
            progress.say(f"{text}; {what}")
            progress.advance()

        return train_and_score(candidates, labelled, split, protocols, model=model, seed=seed, progress=finished)
