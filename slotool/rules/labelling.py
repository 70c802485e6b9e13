"""Which requests are worth a label: those that some ensemble answers otherwise than the best version.

A guarantee is about e − b, the ensemble's error less the best version's. Where both give the same answer that is 0,
whatever the truth. So with an absolute tolerance all evidence comes from requests whose answers differ, and the others
count in full without a label. With a relative tolerance, e − (1 + τ)·b is at most 0 there, and 0 is on the safe side.
The requests must stay a random sample: they are looked at in random order, not the most telling first.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from slotool.errors import TableError
from slotool.rules.points import from_point
from slotool.rules.policies import OSFA
from slotool.rules.ruleset import RuleSet
from slotool.tables import OutcomeTable

# Of a random sample that is taken for none.
MIN_CHANCE = 1e-6


def ensembles_that_differ(rules: RuleSet, answers: OutcomeTable) -> np.ndarray:
    """Of the ensembles of ``rules``, how many answer otherwise than the best version: int64 [examples].

    Errors in ``answers`` are not looked at. Raises ``TableError`` for a table without answers, and ``InputError`` when
    it lacks a version that the rules consult.
    """
    codes = np.unique(answers.labels, return_inverse=True)[1].reshape(answers.labels.shape)
    at = [pd.Index(names).get_indexer(pd.Index(answers.rows[column]))
          for column, names in (("example", answers.examples), ("version", answers.versions))]  # fmt: skip
    rows = answers.rows.assign(error=codes[at[0], at[1]].astype(np.float64))
    # A replay gives the error of the answer that goes out: here the answer itself.
    coded, best = OutcomeTable(rows), OSFA(rules.best_version)
    expected = best.replay(coded).error
    points = dict.fromkeys(rule.point for rule in rules.rules if rule.point != best.point)
    differ = np.zeros(len(expected), dtype=np.int64)
    for point in points:
        differ += from_point(point).replay(coded).error != expected
    return differ


def with_chosen_labels(rules: RuleSet, answers: OutcomeTable, truths: Mapping[str, str]) -> OutcomeTable:
    """The outcomes of chosen requests: example and truth, in their random order, the truth empty where none is known.

    Those before the first whose truth is needed and unknown: a random sample, however far labelling has come. Where the
    truth makes no difference and is unknown, errors are 0. Raises ``TableError`` for an example without answers, when
    the first needs a label, when most truths are answers that no version gives, and when requests are plainly no random
    sample; else as ``ensembles_that_differ``.
    """
    differ = dict(zip(answers.examples, ensembles_that_differ(rules, answers) > 0, strict=True))
    _require_known(truths, answers)
    taken: list[str] = []
    for example, truth in truths.items():
        if example not in differ:
            raise TableError(f"the answers lack example {example!r}, which was chosen")
        if differ[example] and not truth:
            break
        taken.append(example)
    if not taken:
        raise TableError("the first chosen request has no truth yet: label from the top of the list")
    _require_random(np.array([differ[example] for example in taken]), np.array(list(differ.values())))
    rows = answers.rows.set_index("example").loc[taken].reset_index()
    truth_of = rows["example"].map(truths)
    wrong = (rows["answer"] != truth_of) & (truth_of != "")
    return OutcomeTable(rows.assign(error=wrong.astype(np.float64)))


def _require_known(truths: Mapping[str, str], answers: OutcomeTable) -> None:
    """Raises ``TableError`` when most truths are answers that no version gives: they are written otherwise."""
    known = set(answers.labels.flat)
    given = [truth for truth in truths.values() if truth]
    strange = [truth for truth in given if truth not in known]
    if 2 * len(strange) > len(given):
        raise TableError(
            f"{len(strange):,} of {len(given):,} truths are answers that no version gives, such as "
            f"{strange[0][:40]!r}; answers are written like {min(known)[:40]!r}"
        )


def _require_random(taken: np.ndarray, all_answers: np.ndarray) -> None:
    """bool [taken], bool [answers]: whether ensembles answer otherwise. Raises ``TableError`` where so many or so few
    among those taken would be drawn at random less than once in a million times, or all of them stand together at
    either end."""
    from scipy.special import comb
    from scipy.stats import hypergeom

    drawn = hypergeom(len(all_answers), int(all_answers.sum()), len(taken))
    count = int(taken.sum())
    if (taken[:count].all() or taken[len(taken) - count :].all()) and 2 / comb(len(taken), count) < MIN_CHANCE:
        raise TableError(
            f"the labelled requests are sorted: the {count:,} that ensembles differ on stand together among "
            f"{len(taken):,}; keep all rows of choose-labels in their random order, which its column order says"
        )
    if min(drawn.cdf(count), drawn.sf(count - 1)) < MIN_CHANCE:
        raise TableError(
            f"the labelled requests are no random sample: ensembles differ on {count:,} of {len(taken):,}, and on "
            f"{int(all_answers.sum()):,} of all {len(all_answers):,}; keep all rows of choose-labels in their order"
        )


def sample_to_label(differ: np.ndarray, labels: int | None, seed: int) -> np.ndarray:
    """Requests in random order, up to the last of so many labels (None: all): int64 indices of ``differ``.

    They end with one that needs a label, a time to stop: what follows another such part stays a random sample.
    """
    order = np.random.default_rng(seed).permutation(len(differ))
    if labels is None:
        return order
    used = np.cumsum(differ[order] > 0)
    return order[: int(np.searchsorted(used, labels)) + 1]
