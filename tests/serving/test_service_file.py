"""``service.toml``: several models, each with its own tables, rules and policy; every mistake is one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotool.artifacts.bundle import shipped_artifact
from slotool.elastic.loading import load_served
from slotool.elastic.model import identities
from slotool.errors import InputError
from slotool.serving.operations.service_file import ModelEntry, read_models
from slotool.serving.operations.sources import Sources
from tests.serving.live_server import tier_rules

Slotool = Callable[..., Any]
FAMILY = shipped_artifact("family").path
COMMON = Sources((), threads=2, replicas=3, mapped=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A service file's path, beside a link to the shipped family and rules for it."""
    (tmp_path / "family").symlink_to(FAMILY)
    tier_rules().save(tmp_path / "rules.json")
    return tmp_path / "service.toml"


def test_each_model_has_its_own_and_the_rest_as_the_file_or_the_command_line_says(file: Path) -> None:
    entries = [
        {"artifact": "family", "name": "strict", "rules": "rules.json", "deadline-ms": 5, "policy": "slackfit"},
        {"artifact": "family"},
    ]
    sources = read_models(entries, file, {"rules": Path("rules.json")}, {"policy": "osfa"}, COMMON)
    strict, other = sources.parts
    assert (strict.names, other.names) == (("strict",), ("family",))
    assert strict.artifacts == other.artifacts == (file.parent / "family",)
    assert strict.rules == other.rules == file.parent / "rules.json"
    assert (strict.deadline_us, other.deadline_us) == (5_000.0, math.inf)
    assert strict.policy == other.policy == sources.policy == "osfa"
    assert (strict.threads, strict.replicas, strict.mapped) == (2, 3, True)
    assert read_models(entries, file, {}, {}, COMMON).policy == "slackfit, by-demand"


def test_models_of_one_artifact_are_served_by_different_rules_and_reloaded(file: Path) -> None:
    models = identities(load_served(str(FAMILY)))
    replace(tier_rules(), models=models).save(file.parent / "rules.json")
    entries = [{"artifact": "family", "name": "tiers", "rules": "rules.json"}, {"artifact": "family"}]
    sources = read_models(entries, file, {}, {}, COMMON)
    doubts: list[str] = []
    served = sources.load(doubts.append)
    assert [(name, entry.rules is not None) for name, entry in served.items()] == [("tiers", True), ("family", False)]
    replace(tier_rules(threshold=0.9), models=models).save(file.parent / "rules.json")
    again = sources.reload(served, doubts.append)
    assert again["tiers"].rules != served["tiers"].rules
    assert again["tiers"].model is served["tiers"].model
    assert sources.policies == sources.with_policy("by-demand").policies == ("by-demand",)
    assert doubts == []


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (3, "models[1]: a table is expected, this is a whole number"),
        ({}, "models[1]: the key 'artifact' is missing"),
        ({"artifact": 3}, "models[1].artifact: text is expected, this is a whole number"),
        ({"artifact": "family"}, "models[1].name: 'family' is the name of another model"),
        ({"artifact": "family", "name": "f", "rulse": "r"}, "deadline-ms; did you mean 'rules'?"),
        ({"artifact": "family", "name": "f", "canary": {"artifact": "family"}}, "there is no key 'canary'"),
        ({"artifact": "family", "name": "f", "deadline-ms": 0}, "models[1].deadline-ms: a number > 0 is expected"),
        ({"artifact": "family", "name": "f", "deadline-ms": "5ms"}, "deadline-ms: a number is expected, this is text"),
        ({"artifact": "nowhere"}, "models[1].artifact: there is no folder"),
        ({"artifact": "family", "name": "f", "rules": "r.json"}, "r.json; rules of slotool gen-rules is expected"),
        ({"artifact": "family", "name": "f", "plan": "p.json"}, "models[1].plan: there is no file"),
    ],
)
def test_a_mistake_in_a_table_names_file_and_key(file: Path, entry: Any, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        read_models([{"artifact": "family"}, entry], file, {}, {}, COMMON)
    assert str(refused.value).startswith(f"{file}: models[1]")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("models = []", [], "give one at least, or --config FILE.toml that lists [[models]]; "),
        ("port = 'x'", [], "service.toml: port: "),
        ("port = 70000", [], "65535"),
        ("port = true", [], "service.toml: port: a whole number is expected, this is true or false"),
        ('port = "18999"', [], "service.toml: port: a whole number is expected, this is text"),
        ("port = 80.0", [], "service.toml: port: a whole number is expected, this is a number"),
        ("default-deadline-ms = true", [], "default-deadline-ms: a number is expected, this is true or false"),
        ("host = 3", [], "service.toml: host: text is expected, this is a whole number"),
        ("json = 1", [], "service.toml: json: true or false is expected, this is a whole number"),
        ("[[models]]\nartifact = 'family'\nname = 'a/b'", [], "models[0].name: 'a/b' cannot name a model"),
        ("[[models]]\nartifact = 'family'\nname = \"a b\\n\"", [], r"models[0].name: 'a b\n' cannot name a model"),
        ("[[models]]\nartifact = 'family'\npolicy = 'nope'", [], "service.toml: models[0]: no policy 'nope'"),
        ("engine = 'gpu'\n[[models]]\nartifact = 'family'", [], "service.toml: engine: "),
        ("hang = 'soon'\nengine = 'local'\n[[models]]\nartifact = 'family'", [], "service.toml: hang: "),
        ("engine = 'inline'\nreplicas = 2\n[[models]]\nartifact = 'f'", [], "service.toml: replicas: it has no effect"),
        ("host = '192.0.2.1'\n[[models]]\nartifact = 'family'", [], "service.toml: host: 192.0.2.1 is no address"),
        ("log = 'no/x'\n[[models]]\nartifact = 'family'", [], "service.toml: log: "),
        ("prot = 1", [], "'prot' is no option of serve; did you mean 'port'?"),
        ("latency = 3", [], "latency: "),
        ("[models]\na = 1", [], "'models' is one table"),
        ("[[models]]\nartifact = 'family'", ["family"], "lists the models: leave them out"),
        ("[[models]]\nartifact = 'family'", ["--name", "f"], "lists the models: leave them out"),
        ("[[models]]\nartifact = 'family'", ["--rules", "none.json"], "models[0].rules: there is no file"),
        ("token-file = 'none'\n[[models]]\nartifact = 'family'", [], "token-file: there is no file"),
    ],
)
def test_a_mistake_at_the_top_or_on_the_command_line(
    slotool: Slotool, file: Path, text: str, arguments: list[str], sentence: str
) -> None:
    file.write_text(text + "\n")
    run = slotool("serve", "--config", file, *arguments)
    assert run.exit_code == 2
    assert sentence in run.stderr


def test_models_are_listed_in_a_file(slotool: Slotool) -> None:
    assert "give one at least" in slotool("serve").stderr
    run = slotool("serve", "--models", "family")
    assert run.exit_code == 2
    assert "models are listed in a file" in run.stderr


def test_the_reference_has_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/service-file.md").read_text()
    keys = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(keys) == sorted(ModelEntry.__struct_encode_fields__)
