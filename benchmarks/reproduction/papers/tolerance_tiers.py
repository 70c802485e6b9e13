"""Halpern and others: *One Size Does Not Fit All* (ISPASS 2019)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.reproduction.image_services import published_versions, recorded_answers
from benchmarks.reproduction.paper import Figure, Found, Paper
from benchmarks.reproduction.plots import curves
from benchmarks.reproduction.workspace import Workspace
from slotool.demo import Document
from slotool.reports.figure import duration, percent
from slotool.rules.analysis import CATEGORIES, categories
from slotool.tables import OutcomeTable

OUTCOMES, ASR = "outcomes.parquet", "asr-outcomes.parquet"
# Tables of a user's own services, in the format of import-outcomes.
OWN = ("asr-outcomes.parquet", "asr-outcomes.csv", "ic-outcomes.parquet", "ic-outcomes.csv")
TOLERANCES = (0.01, 0.05, 0.1)
# Those of the paper, 0 to 10 %, and wider ones: of a service of a third of its error they are as many points.
OFFERED = "0,0.01,0.02,0.03,0.05,0.1,0.15,0.2,0.25,0.3"
PAPERS_POLICIES, CASCADES = "osfa,seq,conc", "osfa,cascade"
_FACES = (
    "recorded answers of four services, each at its price, to faces of eight expressions, instead of networks on "
    "ImageNet"
)
_SERVICES = "another service: operating points of one image classifier, on a CPU, without a network in between"


def _outcomes(workspace: Workspace) -> tuple[str, OutcomeTable, str]:
    """The outcome table that the figures are of: its path for a command, the table, and what it is."""
    if (own := next((own_table for own_table in map(workspace.find, OWN) if own_table is not None), None)) is not None:
        return str(own), OutcomeTable.load(own), f"{own.name}, a table of the user's own services"
    if (recordings := workspace.find("voxforge")) is not None:
        return ASR, _recognised(workspace, recordings), "VoxForge recordings, by pocketsphinx at seven beam widths"
    images = workspace.find("fashion-mnist")
    if images is None:
        path = workspace.shipped_table("fashion-mnist-supernet-outcomes.parquet")
        return path, OutcomeTable.load(path), "the shipped outcomes of ten subnets of a supernet, 10,000 test images " \
            "of Fashion-MNIST"  # fmt: skip
    epochs = workspace.pick(" --epochs 3", "")
    workspace.slotool(f"train family -o family --data {images} --threads 1 --seed {workspace.seed}{epochs}")
    workspace.slotool(f"evaluate family -o {OUTCOMES} --data {images}")
    table = OutcomeTable.load(workspace.path(OUTCOMES))
    return OUTCOMES, table, "three versions trained on Fashion-MNIST, its 10,000 test images"


Source = Callable[[Workspace], tuple[str, OutcomeTable, str]]


def _recognised(workspace: Workspace, recordings: Path) -> OutcomeTable:
    """All recordings, or at the small scale some, decoded once by each version."""
    limit = workspace.pick(" --limit 200", "")
    script = Path(__file__).parent.with_name("speech.py")
    shutil.copyfile(script, workspace.path(script.name))
    workspace.python(f"{script.name} {recordings} -o {ASR}{limit} --seed {workspace.seed}", made=ASR)
    return OutcomeTable.load(workspace.path(ASR))


def _by_fold(
    workspace: Workspace, method: str = "certified", policies: str = PAPERS_POLICIES, source: Source = _outcomes
) -> tuple[Document, str]:
    """Ten folds: rules from nine, degradation and savings on the tenth; and what the table is."""
    path, _, data = source(workspace)
    rules = f"rules-{'' if source is _outcomes else 'services-'}{method}-{policies.replace(',', '-')}.json"
    guarantee = "" if method == "naive" else f" --policies {policies} --confidence 0.999 --seed {workspace.seed}"
    workspace.slotool(f"gen-rules {path} -o {rules} --method {method} --tolerances {OFFERED}{guarantee}")
    return workspace.slotool(f"evaluate-rules {rules} {path} --folds 10"), data


def _tiers(document: Document, objective: str) -> list[Document]:
    return sorted((t for t in document["tiers"] if t["objective"] == objective), key=lambda tier: tier["tolerance"])


def _versions(workspace: Workspace) -> Found:
    from slotool.rules.analysis import version_facts

    _, table, data = _outcomes(workspace)
    facts = version_facts(table)
    fast, accurate = facts[0], min(facts, key=lambda fact: fact.error)
    slower, better = accurate.response_time_s / fast.response_time_s, 1 - accurate.error / fast.error
    return Found(
        says=f"the most accurate of {len(facts)} versions takes {slower:.1f} × the fastest one's time and has "
        f"{better:.0%} less error ({percent(fast.error)} to {percent(accurate.error)})",
        agrees=accurate.response_time_s > fast.response_time_s and accurate.error < fast.error,
        columns=("version", "error", "response time", "Pareto"),
        rows=[(f.version, percent(f.error), duration(f.response_time_s), "yes" if f.pareto else "no") for f in facts],
        data=data,
        plot=curves(
            "Error by response time",
            "One point a version.",
            ("response time, ms", "log"),
            ("error", "share"),
            {"versions": ([1e3 * f.response_time_s for f in facts], [f.error for f in facts])},
        ),
    )


def _categories(workspace: Workspace) -> Found:
    from slotool.rules.analysis import category_shares

    _, table, data = _outcomes(workspace)
    shares = category_shares(table)
    return Found(
        says=f"{percent(shares['unchanged'])} of the requests do not depend on the version, "
        f"{percent(shares['improves'])} "
        "improve with a slower one",
        agrees=shares["unchanged"] >= 0.65 and shares["improves"] >= 0.15,
        columns=("category", "share of requests"),
        rows=[(name, percent(share)) for name, share in shares.items()],
        data=data,
    )


def category_errors(outcomes: OutcomeTable) -> dict[str, np.ndarray]:
    """Mean error per category that has requests, and of ``all``: float64 [versions], in the table's order (Fig. 3)."""
    error, of = outcomes.matrix("error"), categories(outcomes)
    own = {name: error[of == at].mean(axis=0) for at, name in enumerate(CATEGORIES) if (of == at).any()}
    return {"all": error.mean(axis=0), **own}


def category_confidences(outcomes: OutcomeTable, version: int) -> dict[str, np.ndarray]:
    """Confidences of one version, ascending, per category that has requests: float64 [any] (Fig. 5)."""
    sure, of = outcomes.matrix("confidence")[:, version], categories(outcomes)
    return {name: np.sort(sure[of == at]) for at, name in enumerate(CATEGORIES) if (of == at).any()}


def _category_errors(workspace: Workspace) -> Found:
    _, table, data = _outcomes(workspace)
    order = np.argsort(table.matrix("latency_s").mean(axis=0), kind="stable")
    errors_by_name = {name: errors[order] for name, errors in category_errors(table).items() if name != "unchanged"}
    first, last = errors_by_name["all"][0], errors_by_name["all"][-1]
    return Found(
        says=f"over all requests the error falls from {percent(first)} to {percent(last)} from the fastest version to "
        "the slowest",
        agrees=bool((np.diff(errors_by_name["all"]) <= 0).all()),
        columns=("category", *(table.versions[at] for at in order)),
        rows=[(name, *map(percent, errors)) for name, errors in errors_by_name.items()],
        data=data,
        plot=curves(
            "Error by version and category",
            "Versions from the fastest to the slowest; requests that no version changes are left out.",
            ("version, by speed", "linear"),
            ("error", "share"),
            {name: (np.arange(1, len(order) + 1), errors) for name, errors in errors_by_name.items()},
        ),
    )


def _confidences(workspace: Workspace) -> Found:
    _, table, data = _outcomes(workspace)
    fastest = int(np.argmin(table.matrix("latency_s").mean(axis=0)))
    confidences = category_confidences(table, fastest)
    means = {name: float(values.mean()) for name, values in confidences.items()}
    others = np.concatenate([values for name, values in confidences.items() if name != "unchanged"])
    quantiles = (0.1, 0.25, 0.5, 0.75, 0.9)
    return Found(
        says=f"the fastest version's mean confidence is {means['unchanged']:.3f} on unchanged requests and "
        f"{others.mean():.3f} on the others",
        agrees=bool(means["unchanged"] > others.mean()),
        columns=("category", "requests", "mean", *(f"p{100 * q:g}" for q in quantiles)),
        rows=[
            (name, f"{len(v):,}", f"{v.mean():.3f}", *(f"{x:.3f}" for x in np.quantile(v, quantiles)))
            for name, v in confidences.items()
        ],
        data=f"{data}; version {table.versions[fastest]}",
    )


def _guarantees(
    workspace: Workspace,
    objective: str = "response-time",
    source: Source = _outcomes,
    policies: str = PAPERS_POLICIES,
) -> Found:
    document, data = _by_fold(workspace, policies=policies, source=source)
    naive, _ = _by_fold(workspace, "naive", "osfa", source)
    tiers, single = _tiers(document, objective), _tiers(naive, objective)
    above = sum(tier["above_tolerance"] for tier in tiers)
    loose = sum(tier["above_tolerance"] for tier in single)
    return Found(
        says=f"{above} of {10 * len(tiers)} tiers × folds exceed their tolerance, {document['violations']} of them "
        f"significantly; the best single version chosen without a guarantee: {loose} of {10 * len(single)}",
        agrees=above == 0,
        columns=("tolerance", "worst fold", "mean of ten folds", "naive: worst fold"),
        rows=[
            (percent(t["tolerance"], 0), percent(t["worst_degradation"], 2), percent(t["degradation"], 2),
             percent(s["worst_degradation"], 2))
            for t, s in zip(tiers, single, strict=True)
        ],
        data=f"{data}; ten folds, confidence 0.999",
        plot=curves(
            "Observed against tolerated degradation",
            "Relative rise of the error; worst of ten folds. Above the dashed line a tolerance is exceeded.",
            ("tolerance", "share"),
            ("observed degradation", "linear"),
            {
                name: ([t["tolerance"] for t in rows], [t["worst_degradation"] or 0.0 for t in rows])
                for name, rows in (("certified tiers", tiers), ("naive single version", single))
            },
            dashed={"tolerance": ([t["tolerance"] for t in tiers], [t["tolerance"] for t in tiers])},
        ),
    )  # fmt: skip


def _saved(workspace: Workspace, objective: str, key: str, source: Source = _outcomes) -> Found:
    """Savings by the paper's policies, by one version alone, and with cascades, which slotool also tries."""
    papers, cascades = "paper's policies", "with cascades"
    classes = {papers: PAPERS_POLICIES, "one version (TT-OSFA)": "osfa", cascades: CASCADES}
    documents = {name: _by_fold(workspace, policies=policies, source=source) for name, policies in classes.items()}
    tiers = {name: _tiers(document, objective) for name, (document, _) in documents.items()}
    saved = {name: {round(tier["tolerance"], 4): tier[key] for tier in rows} for name, rows in tiers.items()}
    at = {
        name: ", ".join(percent(saved[name][tolerance], 0) for tolerance in TOLERANCES) for name in (papers, cascades)
    }
    most = max(saved[cascades])
    return Found(
        says=f"at 1, 5 and 10 % tolerance the paper's policies save {at[papers]}, cascades {at[cascades]}; at "
        f"{percent(most, 0)} {percent(saved[papers][most], 0)} and {percent(saved[cascades][most], 0)}",
        agrees=all(saved[cascades][tolerance] > 0 for tolerance in TOLERANCES),
        columns=("tolerance", *saved),
        rows=[
            (percent(tolerance, 0), *(percent(values[tolerance]) for values in saved.values()))
            for tolerance in saved[cascades]
        ],
        data=f"{documents[papers][1]}; mean of ten folds, confidence 0.999",
        plot=curves(
            "Saved by tolerance",
            "Share of the most accurate version's; mean of ten folds.",
            ("tolerance", "share"),
            ("saved, %", "linear"),
            {name: (list(values), [100 * value for value in values.values()]) for name, values in saved.items()},
        ),
    )


PAPER = Paper(
    name="tolerance-tiers",
    title="Tolerance Tiers",
    cited="M. Halpern, B. Boroujerdian, T. Mummert, E. Duesterwald, V. J. Reddi: *One Size Does Not Fit All: "
    "Quantifying "
    "and Exposing the Accuracy-Latency Trade-off in Machine Learning Cloud Service APIs via Tolerance Tiers*, "
    "ISPASS 2019.",
    setting="a speech recogniser of seven beam widths (VoxForge, 36,000 to 40,000 utterances) on four Xeon cores a "
    "node, "
    "and six ImageNet networks (45,000 to 50,000 images) on a K80",
    figures=(
        Figure(
            "1", "Error and response time by version",
            "error falls by 9.2 % (speech) and 65.6 % (images) while the response time rises 2.6 × and 5 ×",
            "the most accurate version is slower and has less error than the fastest",
            _SERVICES, _versions,
        ),
        Figure(
            "1b", "Error and response time of image networks",
            "error falls from 39.6 % to 23.9 % from SqueezeNet to ResNet-152 (40 % less; the text says 65.6 %) "
            "while the response time rises 5 ×; VGG-16 and VGG-19 are not on the Pareto front",
            "the most accurate takes more than twice the fastest's time, and neither VGG is on the front",
            "published figures of today's weights on a CPU instead of own measurements of Caffe's on a K80; no "
            "SqueezeNet among them, so ResNet-18 is the fastest", published_versions,
        ),
        Figure(
            "2", "Requests by what a slower version changes (2e, 2f)",
            "over 74 % (speech) and 65 % (images) of the requests are unchanged, over 15 % improve",
            "at least 65 % are unchanged and 15 % improve",
            _SERVICES, _categories,
        ),
        Figure(
            "3", "Error by category",
            "over all requests the error falls from version to version, although it rises for some",
            "over all requests no version has more error than a faster one",
            _SERVICES, _category_errors,
        ),
        Figure(
            "5", "Confidence by category",
            "unchanged requests have clearly higher confidence than the others, at every version",
            "the fastest version's mean confidence is higher on unchanged requests",
            _SERVICES, _confidences,
        ),
        Figure(
            "8", "Guaranteed against observed degradation",
            "no tier exceeds its tolerance in ten folds; the best single version without a guarantee does several "
            "times",
            "no tier exceeds its tolerance in any fold",
            "folds of 1,000 examples instead of 4,000 and 5,000; a mean over a small fold may exceed a tolerance that "
            "holds", _guarantees,
        ),
        Figure(
            "8b", "Guaranteed against observed degradation, image recognition",
            "no tier exceeds its tolerance in ten folds; the best single version without a guarantee does several "
            "times",
            "no tier exceeds its tolerance in any fold",
            f"{_FACES}; cascades, as the paper's policies save nothing here; folds of 636 examples, not 4,500, of "
            "which a mean may exceed a tolerance that holds",
            lambda workspace: _guarantees(workspace, "cost", recorded_answers, CASCADES),
        ),
        Figure(
            "9", "Response time saved",
            "at 1, 5 and 10 %: about 20 % (speech); 20, 40 and 50 % (images); never less than one version alone",
            "something is saved at 1, 5 and 10 %",
            f"{_SERVICES}; its versions differ less in error than a SqueezeNet and a ResNet-152, and slotool's "
            "certificates hold for all tiers at once",
            lambda workspace: _saved(workspace, "response-time", "response_time_saved"),
        ),
        Figure(
            "10", "Cost saved",
            "at 1, 5 and 10 %: roughly 35, 55 and 60 % (images)",
            "something is saved at 1, 5 and 10 %",
            f"{_SERVICES}; slotool's certificates hold for all tiers at once",
            lambda workspace: _saved(workspace, "cost", "cost_saved"),
        ),
        Figure(
            "10b", "Cost saved, image recognition",
            "at 1, 5 and 10 %: roughly 35, 55 and 60 %",
            "something is saved at 1, 5 and 10 %",
            f"{_FACES}; slotool's certificates hold for all tiers at once",
            lambda workspace: _saved(workspace, "cost", "cost_saved", recorded_answers),
        ),
    ),
    missing=(
        ("2a to 2d", "one request each, picked by hand as an example of its category"),
        ("4, 6, 7", "drawings and code, no measurements"),
        ("1a to 10a on VoxForge", "the recordings are not shipped: put them in the folder voxforge of --data, in "
         "VoxForge's own layout, and install 'slotool[speech]'; or give your own recogniser's outcome table as "
         "asr-outcomes.parquet"),
        ("2f, 3b, 5b, 8b, 9b, 10b on ImageNet", "the images are licensed to researchers by request, and trained "
         "weights would have to be downloaded: give the folder of your networks' ic-outcomes.parquet as --data"),
        ("9b on FER+", "the recorded answers come without response times"),
    ),
)  # fmt: skip
