"""What would answer better than the predictor that did: another one, whose training covers the networks, or one that
``calibrate`` makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slotool.commands.predictors.chosen_predictor import Chosen, machine_differences
from slotool.machine import usable_cores

if TYPE_CHECKING:
    from slotool.predictors.labels import Setting
    from slotool.predictors.trained.artifact import TrainedPredictor


def advice_of(chosen: Chosen, trained: TrainedPredictor[Any], elsewhere: bool, *, colocated: bool) -> list[str]:
    """Sentences with commands; none where nothing is known to be better. ``elsewhere``: whether ``trained`` learnt the
    latencies of another machine than this."""
    found = [sentence for sentence in (_covering(chosen),) if sentence]
    unbounded = chosen.coverage is not None and chosen.coverage.bounded < chosen.coverage.networks
    if elsewhere or (unbounded and not chosen.calibrated):
        found.append(chosen.refused or _calibrate(chosen, trained.setting, elsewhere, colocated))
    elif unbounded:
        found.append("to measure a network that has no interval: slotool profile solo GRAPHS -o latency.parquet")
    return found


def _covering(chosen: Chosen) -> str | None:
    """Return a remark if another predictor learnt more networks like these; none beside a calibration."""
    own = None if chosen.calibrated else chosen.coverage
    better = [one for one in chosen.others if own and one.coverage and one.coverage.covered > own.covered]
    if not better or own is None:
        return None
    other = max(better, key=lambda one: one.coverage.covered if one.coverage else 0)
    assert other.coverage is not None
    setting, covered = other.opened.setting, other.coverage.covered
    which = "this" if own.networks == 1 else "these" if covered == own.networks else f"{covered} of these"
    known = machine_differences(other.opened.require_solo())
    where = "this machine" if known is None else f"{'a similar' if known.similar else 'another'} machine"
    if known is not None:
        where += f" ({setting.cpu or setting.machine})"
    threads = f"{setting.threads} thread{'' if setting.threads == 1 else 's'}"
    learnt = f"{other.path} learnt networks like {which}, on {where} with {threads}"
    return f"{learnt}: slotool predict {other.folder} … asks it"


def _calibrate(chosen: Chosen, setting: Setting, elsewhere: bool, colocated: bool) -> str:
    """What it would cost to be right here."""
    if colocated or setting.device != "cpu" or (setting.batch_size != 1 and not chosen.scaled):
        return (
            "to learn this machine, measure ten networks here and adapt: "
            f"slotool profile solo GRAPHS --for {chosen.folder} -o few.parquet; "
            f"slotool adapt-predictor {chosen.folder} few.parquet --graphs GRAPHS -o here"
        )
    command = f"slotool calibrate --backend {setting.backend}"
    if setting.threads <= usable_cores():
        command += f" --threads {setting.threads}"
    learn = "this machine" if elsewhere else "transformers and hybrids on this machine too"
    return f"to learn {learn} takes two minutes: {command}; it measures sixty networks and keeps a predictor"


def other_document(other: Chosen) -> dict[str, Any]:
    """JSON: a predictor that could have answered too, and of how many of the networks it learnt the like."""
    known = other.coverage
    return {
        "artifact": other.path,
        "setting": other.opened.setting.document(),
        "this_machine": None if known is None else known.here,
        "like_training": None if known is None else known.covered,
    }
