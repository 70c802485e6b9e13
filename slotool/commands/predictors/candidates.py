"""Predictors that may answer where the user names none, and which of them does: that whose training covers the
networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.networks.networks import Networks
from slotool.commands.predictors.chosen_predictor import (
    Chosen,
    Coverage,
    machine_differences,
    not_covered,
    opened_predictors,
)

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph


@dataclass(frozen=True)
class Candidates:
    """Predictors of one backend, in the order in which they answer where nothing else tells them apart: one calibrated
    on this machine, then those shipped; the one that the user named alone. ``facts``: those that tell a predictor's
    settings apart, but for the batch size. ``unfit``: those with other facts, which may know the networks better.
    ``named``: by the user. ``colocated``: predictors of co-located latencies, which are not scaled to a batch size."""

    each: Sequence[Chosen]
    facts: Mapping[str, Any]
    unfit: Sequence[Chosen] = ()
    named: bool = False
    colocated: bool = False

    @classmethod
    def of(cls, predictor: str | Path | None, asked: Networks, *, colocated: bool = False, **facts: Any) -> Candidates:
        """Those with these ``facts`` (device, backend, precision, threads).

        Raises ``ArgumentError`` for a backend or device that none is of.
        """
        opened, rest = opened_predictors(predictor, asked, colocated=colocated, **facts)
        return cls(opened, rest, named=predictor is not None, colocated=colocated)

    def of_setting(self, batch_size: int | None) -> Candidates:
        """Each of its setting that the facts and ``batch_size`` choose (``Chosen.of_setting``).

        Raises ``ArgumentError`` where no predictor has such a setting, or one has several.
        """
        facts = {**self.facts, "batch_size": batch_size}
        fitting = self.fitting(batch_size)
        return replace(fitting, each=[one.of_setting(scaling=not self.colocated, **facts) for one in fitting.each])

    def fitting(self, batch_size: int | None = None) -> Candidates:
        """Return the candidates that have such a setting or, where none has, from whose settings it can be scaled.

        Raises ``ArgumentError`` where there are none.
        """
        facts = {**self.facts, "batch_size": batch_size}
        fitting = [one for one in self.each if one.fitting(**facts)]
        fitting = fitting or [one for one in self.each if one.fitting(scaling=not self.colocated, **facts)]
        if not fitting:
            raise not_covered(self.each, named=self.named, **facts)
        return replace(self, each=fitting, unfit=[one for one in self.each if one not in fitting])

    def of_machine(self, machine: str) -> Candidates:
        """Those whose latencies are of the machine with this id."""
        return replace(self, each=[one for one in self.each if one.opened.setting.machine == machine])

    def best(self, graphs: Sequence[OperatorGraph]) -> Chosen:
        """The one that answers for ``graphs``, with why, and what else there is (``Chosen.coverage``, ``others``).

        A calibrated one always does. Of those shipped one of this machine goes before others, since its interval holds
        here; then the one that gives an interval to, and whose training covers, more of the networks; then the one
        whose training is nearest to them.
        """
        if len(self.each) + len(self.unfit) == 1:
            return self.each[0]
        found, unfit = (
            [replace(one, coverage=_coverage(one, graphs)) for one in own] for own in (self.each, self.unfit)
        )
        chosen, *others = sorted(found, key=lambda one: (not one.calibrated, *_rank(one)))
        if others and not chosen.calibrated:
            chosen = replace(chosen, why=f"{chosen.why}; {_compared(chosen, others)}")
        return replace(chosen, others=(*others, *sorted(unfit, key=_rank)))


def _coverage(one: Chosen, graphs: Sequence[OperatorGraph]) -> Coverage:
    trained = one.opened.require_solo()
    predictions = trained.predict(graphs)
    return Coverage(
        here=(found := machine_differences(trained)) is None or found.similar,
        networks=len(graphs),
        covered=sum(outside is None for outside in predictions.outside),
        bounded=sum(why is None for why in predictions.no_interval),
        distance=sum(float(each.vector.sum()) for each in predictions.distances),
    )


def _rank(one: Chosen) -> tuple[Any, ...]:
    """Ascending: the least is chosen."""
    own = one.coverage
    assert own is not None
    # What every one of them covers is told apart by nothing: the order given stays.
    return not own.here, -own.bounded, -own.covered, 0.0 if own.covered == own.networks else own.distance


def _compared(chosen: Chosen, others: Sequence[Chosen]) -> str:
    """Why this one and not the others, by what each was trained on."""
    own = chosen.coverage
    assert own is not None
    if own.here and not all(one.coverage.here for one in others if one.coverage):
        similar = machine_differences(chosen.opened.require_solo()) is not None
        return f"no other was measured on {'a machine as similar' if similar else 'this machine'}"
    known = [(one.path, one.coverage.covered) for one in others if one.coverage]
    if not own.covered and not any(covered for _, covered in known):
        return (
            f"no shipped one learnt networks like {'this' if own.networks == 1 else 'these'}, and this one is nearest"
        )
    if own.networks == 1:
        rest = [f"{'like' if covered else 'unlike'} those of {path}" for path, covered in known]
        return f"the network is like its training networks, {' and '.join(rest)}"
    rest = [f"{covered} like those of {path}" for path, covered in known]
    return f"{own.covered} of {own.networks} networks are like its training networks, {' and '.join(rest)}"
