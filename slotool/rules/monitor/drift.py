"""Sequential test, by betting, that a guarantee still holds, from labelled feedback in the order of arrival.

The guarantee of a tier is that its answers are on average no worse than tolerated: the excess sᵢ = eᵢ − bᵢ − aᵢ has
mean ≤ 0, while requests have the distribution of the outcome table. A bet against it stakes a share λ of the wealth on
each labelled request, ∏(1 + λ sᵢ). While the guarantee holds that is a non-negative supermartingale: it ever exceeds
1/α with probability at most α, at any stopping time (Ville). The test averages several such wealths, which is valid
too: one for each of several stakes, and one that starts at each request t with wealth 1/(t (t + 1)), in total 1. Those
that start when a drift begins have lost nothing before.

The same bet from the other side, ∏(1 − λ sᵢ) without restarts, shows when the labels alone *confirm* a guarantee: while
it does not hold, this wealth too ever exceeds 1/α with probability at most α. So labels from production renew a
certificate at any time, as long as labelled requests are a random sample of one distribution. Where tolerances must
hold for each group, each group has its bets.

If some requests, such as unsure or disputed ones, are labelled more often than others, labels are no random sample. If
each request's probability p of a label is known, its excess is weighted by c/p, where c is the smallest p (inverse
propensity). Its mean over all requests is then c times that of sᵢ, and the bets are valid. Labels must not take longer
for worse answers: leave out requests whose labels may still come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError
from slotool.rules.evidence.betting import Evidence
from slotool.rules.evidence.groups import parts
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.tables import OperatingPoint, OutcomeTable


@dataclass(frozen=True)
class Watched:
    """State of an ensemble at its tightest tolerance, that of ``tier``.

    ``mean_excess``: observed mean, in the table's unit of errors; ``evidence``: the largest so far; ``wanted``:
    evidence at which the guarantee counts as violated. ``alarm_at``: number of labelled requests after which it was
    violated, or None. ``confirmed_at``: number after which these labels alone proved it; None if it was ever violated,
    because the labels are then not of one distribution. ``group``: group of the counted requests; empty: all.
    """

    point: OperatingPoint
    tier: str
    tolerance: float
    mean_excess: float
    evidence: float
    wanted: float
    alarm_at: int | None
    confirmed_at: int | None = None
    group: str = ""

    def alarm(self, rules: RuleSet) -> str:
        """Return a sentence on the violated guarantee and its evidence."""
        evidence = f"evidence {self.evidence:.3g} of {self.wanted:.4g} wanted"
        return f"{self._shown(rules, 'loses more than', self.alarm_at)}, {evidence}"

    def confirmation(self, rules: RuleSet) -> str:
        """Return a sentence on the confirmed guarantee."""
        return self._shown(rules, "keeps", self.confirmed_at)

    def _shown(self, rules: RuleSet, does: str, requests: int | None) -> str:
        whose = f" of {rules.config['group']} {self.group}" if self.group else ""
        return f"tier {self.tier} {does} {rules.unit.amount(self.tolerance)}: shown by {requests:,} requests{whose}"


@dataclass(frozen=True)
class _Watch:
    """Ensemble at a tier's tolerance, and the counted group. ``largest``: most by which an answer can be better."""

    point: OperatingPoint
    tier: str
    tolerance: float
    group: str
    largest: float


class _Standing:
    """Sums and wealth of the bets on one ensemble after the labels so far, of constant size."""

    def __init__(self, watch: _Watch):
        self._watch = watch
        self._against, self._for = Evidence(watch.largest), Evidence(1.0, restarts=False)
        self._excess_sum, self._weight_sum, self._greatest, self._wanted = 0.0, 0.0, 0.0, 0.0
        self._alarm_at: int | None = None
        self._confirmed_at: int | None = None

    def see(self, excess: np.ndarray, weights: np.ndarray, wanted: float) -> None:
        before, excess, self._wanted = self._against.seen, excess * weights, wanted
        against, confirming = self._against.after(excess), self._for.after(-excess)
        self._alarm_at = _first(self._alarm_at, before, against >= wanted)
        self._confirmed_at = _first(self._confirmed_at, before, confirming >= wanted)
        self._greatest = max(self._greatest, float(against.max(initial=0.0)))
        self._excess_sum += float(excess.sum())
        self._weight_sum += float(weights.sum())

    def watched(self, largest_loss: float) -> Watched:
        watch, mean = self._watch, largest_loss * self._excess_sum / max(1e-9, self._weight_sum)
        reached = (self._alarm_at, self._confirmed_at if self._alarm_at is None else None, watch.group)
        return Watched(watch.point, watch.tier, watch.tolerance, mean, self._greatest, self._wanted, *reached)


def _first(earlier: int | None, before: int, reached: np.ndarray) -> int | None:
    """Return ``earlier``, or else the number of the first request with ``reached``, counted from ``before``."""
    return before + int(reached.argmax()) + 1 if earlier is None and reached.any() else earlier


class Watcher:
    """Watch of every ensemble of ``rules``, label after label, without storing labels.

    With probability ≥ ``confidence`` no alarm is raised while all guarantees hold; likewise no guarantee is confirmed
    that does not hold.
    """

    def __init__(self, rules: RuleSet, confidence: float):
        self.rules = rules
        self._confidence = confidence
        self._standings: dict[_Watch, _Standing] = {}

    def see(
        self, feedback: OutcomeTable, groups: Sequence[str] | None = None, weights: np.ndarray | None = None
    ) -> None:
        """Add labelled requests in the order of arrival.

        Raises ``InputError`` when a consulted version is missing, ``TableError`` for a missing column of groups.

        ``groups``: of each request; one without counts for all requests only. None: the feedback's column.
        ``weights``: above 0 and at most 1, the weight of each request; None: equal weights.
        """
        whose = parts(self.rules.config, feedback, groups)
        excesses = list(_excesses(self.rules, self.rules.losses(feedback), whose))
        wanted = len(excesses) / (1.0 - self._confidence)
        weights = np.ones(len(feedback.examples)) if weights is None else weights
        for key, excess, rows in excesses:
            self._standings.setdefault(key, _Standing(key)).see(excess[rows], weights[rows], wanted)

    def watched(self) -> list[Watched]:
        """Return the state of each ensemble after the labels so far."""
        return [standing.watched(self.rules.largest_loss) for standing in self._standings.values()]


def watch(rules: RuleSet, feedback: OutcomeTable, confidence: float, labelled: str | None = None) -> list[Watched]:
    """Watch every ensemble of ``rules`` over ``feedback``; see ``Watcher``.

    ``labelled``: column of the probability with which each request was labelled; None: the same for all. Raises
    ``TableError`` when the feedback lacks a column, ``InputError`` for an error beyond the rules' or an invalid
    probability.
    """
    rules.require_errors(feedback)
    likely = np.ones(1) if labelled is None else feedback.feature(labelled)
    if not ((likely > 0) & (likely <= 1)).all():
        raise InputError(f"column {labelled!r}: probabilities of a label must lie above 0 and up to 1")
    watcher = Watcher(rules, confidence)
    watcher.see(feedback, weights=None if labelled is None else likely.min() / likely)
    return watcher.watched()


def _excesses(
    rules: RuleSet, losses: OutcomeTable, whose: Mapping[str, np.ndarray]
) -> Iterator[tuple[_Watch, np.ndarray, np.ndarray]]:
    """Yield, per ensemble at its tightest tolerance, each answer's excess, and whose requests count.

    ``losses``: outcomes whose errors are what tolerances limit (``RuleSet.losses``). Excesses are float64 [requests],
    in the order of arrival, of errors scaled to [0, 1]; the best version is left out.
    """
    best = OSFA(rules.best_version)
    strictest: dict[OperatingPoint, Rule] = {}
    for rule in rules.rules:
        if rule.point != best.point:
            strictest[rule.point] = min(strictest.get(rule.point, rule), rule, key=lambda other: other.tolerance)
    best_error = best.replay(losses).error
    for point, rule in strictest.items():
        excess, largest = rules.excess(rule.tolerance, from_point(point).replay(losses).error, best_error)
        for name, rows in whose.items():
            yield _Watch(point, rule.id, rule.tolerance, name, largest), excess, rows
