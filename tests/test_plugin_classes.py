"""What plugins are made of stays as it is: a change is meant, recorded here, and told in the changelog.

``python -m tests.test_plugin_classes`` records.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("plugin_classes.txt")
PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "plugins.md"
# The classes that plugins subclass, as the page lists them, and those that their methods take and give.
CLASSES = """
slotool.scheduling.batching.BatchingPolicy
slotool.predictors.base.Estimator
slotool.predictors.base.Predictor
slotool.predictors.base.Examples
slotool.data.adapters.base.DataAdapter
slotool.data.adapters.base.Location
slotool.data.dataset.Dataset
slotool.data.dataset.Split
slotool.models.Model
slotool.models.Signature
slotool.models.TensorSpec
slotool.elastic.slo_nn.rankers.ranker.Ranker
slotool.rules.RuleGenerator
slotool.rules.Problem
slotool.rules.Assessment
slotool.profiling.backends.Backend
slotool.serving.engines.InferenceEngine
"""


def described(place: str) -> Iterator[str]:
    """Its public members, each with its signature or type, in order of their names."""
    module, _, name = place.rpartition(".")
    found: Any = getattr(import_module(module), name)
    members = dict.fromkeys(inspect.get_annotations(found)) | vars(found)
    for member in sorted(members):
        if not member.startswith("_") or member == "__init__":
            yield f"{place}.{member}{_form(found, member)}"


def _form(found: Any, member: str) -> str:
    value = inspect.getattr_static(found, member, None)
    function = getattr(value, "__func__", value)
    if not inspect.isfunction(function):
        annotation = inspect.get_annotations(found).get(member)
        return f": {getattr(annotation, '__forward_arg__', annotation)}" if annotation else " (property)"
    kind = " (class method)" if isinstance(value, classmethod) else ""
    abstract = " (abstract)" if getattr(function, "__isabstractmethod__", False) else ""
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    return f"{signature}{kind}{abstract}"


def record() -> str:
    return "\n".join(line for place in CLASSES.split() for line in described(place)) + "\n"


def test_what_plugins_rely_on_is_as_recorded() -> None:
    now, recorded = record().splitlines(), RECORD.read_text().splitlines()
    gone = [line for line in recorded if line not in now]
    new = [line for line in now if line not in recorded]
    assert (gone, new) == ([], []), "tell it in CHANGELOG.md, then: python -m tests.test_plugin_classes"


def test_every_class_that_the_page_names_is_recorded() -> None:
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| `slotool.")]
    named = {place for line in table for place in re.findall(r"`(slotool[.\w]+\.[A-Z]\w+)`", line)}
    assert len(named) >= 8
    assert named <= set(CLASSES.split())


if __name__ == "__main__":
    RECORD.write_text(record())
