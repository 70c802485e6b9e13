"""What installed packages add to the values of an option, for the help of its command."""

from __future__ import annotations

from typing import Any

# By group of plugins: the parameters, as COMMAND.PARAMETER, whose values they are.
PARAMETERS = {
    "models": ["family.versions"],
    "datasets": [
        *("train mlp.data", "train family.data", "train xmc.data", "train supernet.data", "family.data"),
        *("build-tables.data", "choose-points.data", "evaluate.data"),
        *("profile points.data", "loadtest.data", "gen-switching-plan.data", "plan.data"),
    ],
    "predictors": ["train-predictor.model", "evaluate-predictor.models"],
    "policies": ["simulate.policies", "serve.policy"],
    "rankers": ["build-tables.ranker"],
    "rule_generators": ["gen-rules.method"],
    "backends": ["profile solo.backend", "profile colocated.backend"],
    "engines": ["profile solo.engine", "profile colocated.engine", "serve.engine"],
}


def plugins_of(ctx: Any, parameter: str | None) -> str:
    """A sentence with the names that plugins add to a parameter of the command; empty where there are none."""
    from slotool.errors import PluginError
    from slotool.plugins import installed

    path = f"{' '.join(_names(ctx))}.{parameter}"
    groups = [group for group, parameters in PARAMETERS.items() if path in parameters]
    try:
        names = sorted({plugin.name for group in groups for plugin in installed(group)})
    except PluginError:  # help is read most where something is broken
        return ""
    return f" Of plugins: {', '.join(names)}." if names else ""


def _names(ctx: Any) -> list[str]:
    """Of a subcommand and the groups it is in, without the program."""
    return [] if ctx.parent is None else [*_names(ctx.parent), ctx.info_name]
