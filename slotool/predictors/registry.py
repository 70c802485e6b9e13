"""Registry of predictors by name: a new one is one file and one line here."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from slotool.errors import ArtifactError
from slotool.plugins import Registry
from slotool.predictors.base import COLOCATED, FROM_OTHERS, SOLO, Predictor

# Module and name of each class, imported at first use, and its ``fitted_to``.
PREDICTORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "linear": ("solo.linear:LinearPredictor", (SOLO, COLOCATED)),
    "three-term": ("solo.three_term:ThreeTermPredictor", (SOLO,)),
    "dnn": ("solo.dnn:DnnPredictor", (SOLO, COLOCATED)),
    "additive": ("solo.additive:AdditivePredictor", (SOLO,)),
    "costs": ("solo.operator_costs:OperatorCostPredictor", (SOLO,)),
    "graph": ("solo.graph_network:GraphNetworkPredictor", (SOLO,)),
    "sharing": ("colocated.sharing:SharingPredictor", (COLOCATED,)),
    "adapted": ("transfer.adapted:AdaptedPredictor", (FROM_OTHERS,)),
    "settings": ("settings.predictor:SettingsPredictor", (FROM_OTHERS,)),
}
registry: Registry[type[Predictor[Any]]] = Registry("predictors", PREDICTORS, Predictor)
# Always trained beside others: they take seconds, and show what an elaborate predictor adds.
BASELINES = ("linear", "three-term")


def names_of(*fitted_to: str) -> list[str]:
    """Return the names of slotool's own predictors that are fitted to one of these."""
    return [name for name, (_, accepted) in PREDICTORS.items() if set(fitted_to) & set(accepted)]


def predictor_class(name: str, *, colocated: bool = False) -> type[Predictor[Any]]:
    """Return the class of a predictor of solo, or of co-located, latencies.

    A name that is not slotool's own is that of a plugin, which is loaded by its entry point only. Raises
    ``ArtifactError`` for an unknown name, or a predictor of the other kind of latencies; ``PluginError`` for a plugin
    that cannot be loaded.
    """
    fitted_to = (COLOCATED,) if colocated else (SOLO, FROM_OTHERS)
    names = names_of(*fitted_to)
    if name in names:
        module, _, class_name = PREDICTORS[name][0].partition(":")
        built_in: type[Predictor[Any]] = getattr(import_module(f"slotool.predictors.{module}"), class_name)
        return built_in
    if name in registry.plugins:
        plugin = registry.load(name)
        if not set(fitted_to) & set(plugin.fitted_to):
            kinds = " and ".join(plugin.fitted_to)
            raise ArtifactError(f"{name!r} predicts {kinds} latencies, not {fitted_to[0]} ones")
        return plugin
    choices = ", ".join([*names, *registry.plugins])
    missing = "" if name in PREDICTORS else "; train it again, or install the package that has it"
    raise ArtifactError(f"{name!r} is no predictor of this slotool, which has {choices}{missing}")
