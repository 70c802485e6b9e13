"""Files altered by accident and on purpose: they work as before or are refused with one sentence."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slotool import strict_json
from slotool.artifacts import open_artifact
from slotool.elastic import load_model
from slotool.errors import ArtifactError, InputError
from slotool.graphs import GraphBuilder
from slotool.graphs.store import read_graphs
from slotool.predictors.trained.artifact import COLOCATED, TrainedPredictor
from slotool.rules import RuleSet
from slotool.rules.switching import LoadTest, SwitchingPlan
from slotool.tables import LatencyTable, OutcomeTable
from slotool.tables.schema import MAX_COLUMNS
from slotool.testing.rules import family_outcomes
from tests.hostile.hostile_files import (
    MODELS,
    RAW,
    REPLACEMENTS,
    copied,
    places,
    refused_or_fine,
    rewrite,
    seed,
    texts,
    with_value,
)

ARTIFACTS = ("mlp", "family", "slo-nn", "supernet", "predictor", "predictor-torch", "predictor-devices")
PICKLE = b"cos\nsystem\n(S'touch /tmp/owned'\ntR."


def use(path: Path) -> None:
    """Load an artifact, whatever it is, and ask it once."""
    artifact = open_artifact(path)
    if artifact.kind != "predictor":
        model = load_model(artifact)
        x = np.zeros((2, *model.input_shape), dtype=np.float32)
        for point in (model.points[0], model.full):
            model.forward(x, point)
        return
    predictor = TrainedPredictor.load(artifact)
    builder = GraphBuilder()
    builder.add("Dense", builder.add("InputLayer", shape=[64]), units=8)
    predictions = predictor.predict([builder.graph()])
    predictor.probability_within(predictions, 0.1)
    predictor.latency_table([builder.graph()], predictions)
    if f"{COLOCATED}.json" in artifact.manifest["files"]:
        TrainedPredictor.load(artifact, COLOCATED)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("predictor", ("change", "after", "InputLayer", 0), 10**400),
        ("predictor-devices", ("residuals", "known", 0, "values", 0), 1e300),
    ],
)
def test_a_predictor_with_a_number_that_is_none_is_refused(
    name: str, at: tuple[str | int, ...], value: float, tmp_path: Path
) -> None:
    artifact = copied(name, tmp_path)
    document = json.loads((artifact / "predictor.json").read_text())
    part = document["state"]
    for step in at[:-1]:
        part = part[step]
    part[at[-1]] = value
    rewrite(artifact, "predictor.json", json.dumps(document).encode())
    assert refused_or_fine(lambda: use(artifact), at)


@pytest.mark.parametrize("name", ARTIFACTS)
def test_an_artifact_with_any_value_replaced_works_or_is_refused(
    name: str, tmp_path: Path, hostile_seconds: float
) -> None:
    artifact = copied(name, tmp_path)
    documents = [(path.name, json.loads(path.read_text())) for path in sorted(artifact.glob("*.json"))]
    attempts = [(file, at) for file, document in documents for at in places(document)]
    originals = {path.name: path.read_bytes() for path in artifact.iterdir()}
    random, until_s = np.random.default_rng(seed()), time.monotonic() + hostile_seconds / 2
    while time.monotonic() < until_s:
        file, at = attempts[random.integers(len(attempts))]
        altered = list(texts(json.loads(originals[file]), at))
        text = altered[random.integers(len(altered))]
        rewrite(artifact, file, text.encode())
        refused_or_fine(lambda: use(artifact), (name, file, at, text[:2_000]))
        for changed in (file, "manifest.json"):
            (artifact / changed).write_bytes(originals[changed])


@pytest.mark.parametrize("name", ARTIFACTS)
def test_an_artifact_that_is_not_what_was_written_is_refused(name: str, tmp_path: Path) -> None:
    artifact = copied(name, tmp_path)
    random = np.random.default_rng(0)
    for path in sorted(artifact.iterdir()):
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        for altered in (bytes(flipped), whole[: len(whole) // 2], b"", whole + b"\0", PICKLE, b"[" * 100_000):
            path.write_bytes(altered)
            refused = refused_or_fine(lambda: use(artifact), (path.name, altered[:80]))
            # The manifest has no checksum of its own: a digit of a date may change unseen.
            assert refused or (path.name == "manifest.json" and altered == flipped)
        path.write_bytes(whole)
    use(artifact)


@pytest.mark.parametrize("name", ARTIFACTS)
def test_tensors_altered_with_their_checksum_work_or_are_refused(
    name: str, tmp_path: Path, hostile_seconds: float
) -> None:
    artifact = copied(name, tmp_path)
    random, until_s = np.random.default_rng(seed()), time.monotonic() + hostile_seconds / 4
    files = sorted(artifact.glob("*.safetensors"))
    manifest = (artifact / "manifest.json").read_bytes()
    while time.monotonic() < until_s:
        path = files[random.integers(len(files))]
        whole = path.read_bytes()
        altered = bytearray(whole)
        # Half of the time where the names, types and shapes are.
        longest = len(whole) if random.random() < 0.5 else min(len(whole), 2_000)
        altered[random.integers(longest)] ^= 1 << int(random.integers(8))
        rewrite(artifact, path.name, bytes(altered) if random.random() < 0.9 else whole[: random.integers(len(whole))])
        refused_or_fine(lambda: use(artifact), (name, path.name, time.time()))
        path.write_bytes(whole)
        (artifact / "manifest.json").write_bytes(manifest)


WEIGHTS = {
    "mlp": ("weights.safetensors", "mlp/"),
    "family": ("weights.safetensors", ""),
    "slo-nn": ("weights.safetensors", ""),
    "supernet": ("statistics.safetensors", ""),
    "predictor": ("predictor.safetensors", ""),
    "predictor-torch": ("predictor.safetensors", ""),
    "predictor-devices": ("predictor.safetensors", ""),
}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ARTIFACTS)
def test_weights_that_are_not_numbers_are_refused_by_name(name: str, value: float, tmp_path: Path) -> None:
    artifact = copied(name, tmp_path)
    file, prefix = WEIGHTS[name]
    tensors = open_artifact(artifact).tensors(file)
    chosen = next(key for key, array in tensors.items() if key.startswith(prefix) and array.dtype == np.float32)
    with_value(artifact, file, chosen, value)
    with pytest.raises(ArtifactError, match="holds NaN or infinity") as refused:
        use(artifact)
    assert chosen in str(refused.value)


def test_nothing_outside_of_an_artifact_is_read(tmp_path: Path) -> None:
    artifact, secret = copied("mlp", tmp_path), tmp_path / "secret"
    secret.write_bytes((artifact / "versions.json").read_bytes())
    manifest = json.loads((artifact / "manifest.json").read_text())
    for name in ("../secret", str(secret), "..", ".", "", "a/../../secret", "versions.json\0", "x" * 5_000):
        altered = {**manifest, "files": {**manifest["files"], name: manifest["files"]["versions.json"]}}
        (artifact / "manifest.json").write_text(json.dumps(altered))
        assert refused_or_fine(lambda: use(artifact), name), name
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    (artifact / "versions.json").unlink()
    (artifact / "versions.json").symlink_to(secret)
    with pytest.raises(ArtifactError, match="outside the bundle"):
        use(artifact)


def rules_and_plan(folder: Path) -> dict[Path, Callable[[Path], Any]]:
    """A rule set and a switching plan, with what reads each of them."""
    from slotool.rules import generate_rules

    outcomes = family_outcomes(300)
    rules = generate_rules(outcomes, tolerances=[0.05, 0.1], tolerance_kind="absolute")
    rules.save(folder / "rules.json")
    load = LoadTest("version=small", 1, 1, 100.0, 0.01, 1.0)
    key = "version=small"
    SwitchingPlan("net", 0.02, 1, 1, {key: 100.0}, {key: 0.9}, (load,), "m").save(folder / "plan.json")

    def use_rules(path: Path) -> None:
        read = RuleSet.load(path)
        read.document()
        for objective in ("response-time", "cost"):
            read.rule_for(0.2, objective)

    def use_plan(path: Path) -> None:
        plan = SwitchingPlan.load(path)
        plan.breakpoints, plan.document()

    return {folder / "rules.json": use_rules, folder / "plan.json": use_plan}


def test_rules_and_plans_with_any_value_replaced_work_or_are_refused(tmp_path: Path, hostile_seconds: float) -> None:
    for path, use_it in rules_and_plan(tmp_path).items():
        use_it(path)
        document = json.loads(path.read_text())
        attempts = [(at, i) for at in places(document) for i in range(len(REPLACEMENTS) + len(RAW))]
        np.random.default_rng(seed()).shuffle(attempts)
        until_s = time.monotonic() + hostile_seconds / 2
        for at, i in attempts:
            text = list(texts(document, tuple(at)))[i]
            path.write_text(text)
            refused_or_fine(lambda path=path, use_it=use_it: use_it(path), (path.name, at, text[:2_000]))
            if time.monotonic() > until_s:
                break


def test_graphs_with_any_value_replaced_work_or_are_refused(tmp_path: Path, hostile_seconds: float) -> None:
    builder = GraphBuilder("cnn", "net")
    last = builder.add("Conv2D", builder.add("InputLayer", shape=[3, 8, 8]), filters=4, kernel=3, padding="same")
    builder.add("Dense", builder.add("Flatten", builder.add("MaxPooling2D", last, kernel=2)), units=5)
    document, path = builder.graph().document(), tmp_path / "graphs.jsonl"
    attempts = [(at, i) for at in places(document) for i in range(len(REPLACEMENTS) + len(RAW))]
    np.random.default_rng(seed()).shuffle(attempts)
    until_s = time.monotonic() + hostile_seconds
    for at, i in attempts:
        text = list(texts(document, tuple(at)))[i]
        path.write_text(text)
        refused_or_fine(lambda: [graph.flops for graph in read_graphs(path)], (at, text[:2_000]))
        if time.monotonic() > until_s:
            break


def tables(folder: Path) -> dict[str, tuple[Path, Callable[[Path], Any]]]:
    """A file of every kind of table that has one, with what reads it."""
    family_outcomes(50).save(folder / "outcomes.parquet")
    columns = ["example", "version", "error", "confidence", "latency_s"]
    OutcomeTable.load(folder / "outcomes.parquet").rows[columns].to_csv(folder / "outcomes.csv", index=False)
    row = {"subject": "net", "subject_id": "i", "machine": "m", "samples_s": [1e-3, 1.1e-3], "backend": "torch"}
    LatencyTable.of([row]).save(folder / "latency.parquet")
    return {
        "outcomes": (folder / "outcomes.parquet", OutcomeTable.load),
        "outcomes as text": (folder / "outcomes.csv", OutcomeTable.load),
        "latencies": (folder / "latency.parquet", LatencyTable.load),
    }


@pytest.mark.parametrize("kind", ["outcomes", "outcomes as text", "latencies"])
def test_a_table_altered_anywhere_works_or_is_refused(kind: str, tmp_path: Path, hostile_seconds: float) -> None:
    path, load = tables(tmp_path)[kind]
    whole = path.read_bytes()
    random, until_s = np.random.default_rng(seed()), time.monotonic() + hostile_seconds / 2
    while time.monotonic() < until_s:
        altered = bytearray(whole)
        if random.random() < 0.2:
            del altered[random.integers(len(whole)) :]
        elif random.random() < 0.2:
            altered[random.integers(len(whole)) :][:4] = PICKLE
        for _ in range(random.integers(1, 4)):
            if altered:
                altered[random.integers(len(altered))] = random.integers(256)
        path.write_bytes(bytes(altered))
        refused_or_fine(lambda: load(path), (kind, bytes(altered)[:300]))


@pytest.mark.parametrize(
    "header", ["[]", "null", "1", "[" * 5_000, '{"schema": []}', '{"schema": "slotool/outcomes"}', "\xff"]
)
def test_a_table_with_any_header_works_or_is_refused(header: str, tmp_path: Path) -> None:
    path, load = tables(tmp_path)["outcomes"]
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"slotool": header.encode()}), path)
    refused_or_fine(lambda: load(path), header)


def test_a_table_of_thousands_of_columns_is_refused_at_once(slotool: Any, tmp_path: Path) -> None:
    columns = [f"c{i}" for i in range(10_000)]
    (tmp_path / "wide.csv").write_text(",".join(columns) + "\n" + ",".join("0" * len(columns)) + "\n")
    pq.write_table(pa.table({column: [0] for column in columns}), tmp_path / "wide.parquet")
    (tmp_path / "long.csv").write_text("a" * 10_000_000)
    for name in ("wide.csv", "wide.parquet", "long.csv"):
        began_s = time.process_time()
        with pytest.raises(InputError, match=f"at most {MAX_COLUMNS} columns are read"):
            OutcomeTable.load(tmp_path / name)
        # It took a minute.
        assert time.process_time() - began_s < 5.0
    done = slotool("gen-rules", tmp_path / "wide.csv", "-o", tmp_path / "r.json")
    assert done.exit_code == 2
    assert "10000 columns" in done.stderr


@pytest.mark.parametrize("text", RAW)
def test_commands_end_with_a_sentence_and_code_2(text: str, slotool: Any, tmp_path: Path) -> None:
    artifact, file = copied("mlp", tmp_path), tmp_path / "file.json"
    outcomes = tables(tmp_path)["outcomes"][0]
    file.write_text(text)
    (tmp_path / "graphs.jsonl").write_text(text)
    (artifact / "manifest.json").write_text(text)
    for command in (
        ("evaluate-rules", file, outcomes),
        ("profile", "solo", artifact),
        ("profile", "solo", tmp_path / "graphs.jsonl", "-o", tmp_path / "l.parquet"),
        ("report", file, "-o", tmp_path / "r.html"),
    ):
        done = slotool(*command)
        assert done.exit_code == 2, (command, done.stderr)
        assert "fault of slotool" not in done.stderr
        assert "no such file" not in done.stderr, (command, done.stderr)


def test_a_predictor_is_no_network_to_profile(slotool: Any, tmp_path: Path) -> None:
    done = slotool("profile", "solo", MODELS / "predictor-torch", "-o", tmp_path / "l.parquet")
    assert done.exit_code == 2
    assert "this is a predictor artifact, expected network or family" in done.stderr


def test_json_has_limits() -> None:
    assert strict_json.decode('{"a": [1, 2.5, "x", null, true]}') == {"a": [1, 2.5, "x", None, True]}
    assert strict_json.decode("[" * 100 + "]" * 100)
    # A float, since no integer here has thousands of digits.
    assert strict_json.decode(str(2**64)) == float(2**64)
    for text, reason in (
        ("[" * 101 + "]" * 101, "nested more than 100 deep"),
        ("[" * 10**6, "nested more than 100 deep"),
        ("9" * 4_000, "infinity"),
        ("1e400", "infinity"),
        ("NaN", "unexpected"),
        ('"\\ud800"', "surrogate"),
        ('"\udc80"', "UTF-8"),
        ("", "empty"),
        ("[1,]", "trailing comma"),
    ):
        with pytest.raises(strict_json.JsonError, match=reason):
            strict_json.decode(text)
    with pytest.raises(strict_json.JsonError, match="at most 10 are read"):
        strict_json.decode(b" " * 11, max_bytes=10)


@pytest.mark.parametrize("name", ["manifest.json", "versions.json", "weights.safetensors"])
def test_a_pipe_or_an_endless_device_in_an_artifact_is_refused_at_once(name: str, tmp_path: Path) -> None:
    artifact = copied("mlp", tmp_path)
    (artifact / name).unlink(missing_ok=True)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(artifact / name)
        with pytest.raises(InputError):
            use(artifact)
        (artifact / name).unlink()


def test_a_reload_of_a_manifest_that_became_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    from slotool.serving.operations.sources import Sources

    sources = Sources((copied("mlp", tmp_path),))
    served = sources.load(lambda remark: None)
    manifest = tmp_path / "mlp" / "manifest.json"
    whole = manifest.read_bytes()
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        manifest.unlink()
        make(manifest)
        with pytest.raises(InputError):
            sources.reload(served, lambda remark: None, artifacts=True)
    manifest.unlink()
    manifest.write_bytes(whole)
    sources.reload(served, lambda remark: None, artifacts=True)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path)], ids=["pipe", "loop"])
def test_commands_wait_for_no_pipe_and_no_loop_is_absent(
    slotool: Any, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    artifact = copied("mlp", tmp_path)
    for name in (
        "t.csv",
        "t.parquet",
        "t.jsonl",
        "t.json",
        "t.toml",
        "token",
        "net.onnx",
        "net.keras",
        "x.npz",
        "x.idx",
    ):
        make(tmp_path / name)
    fifo = {path.name: path for path in tmp_path.iterdir()}
    for command in (
        ("gen-rules", fifo["t.csv"], "-o", tmp_path / "r.json"),
        ("gen-rules", fifo["t.parquet"], "-o", tmp_path / "r.json"),
        ("evaluate-rules", fifo["t.json"], fifo["t.csv"]),
        ("profile", "solo", fifo["t.jsonl"], "-o", tmp_path / "l.parquet"),
        ("import-outcomes", fifo["t.csv"], "-o", tmp_path / "o.parquet"),
        ("report", fifo["t.csv"], "-o", tmp_path / "r.html"),
        ("capture", "--onnx", fifo["net.onnx"], "-o", tmp_path / "g.jsonl"),
        ("plan", fifo["t.parquet"], "-o", tmp_path / "p.json"),
        ("gen-arrivals", "--trace", fifo["t.csv"], "-o", tmp_path / "a.parquet"),
        ("serve", fifo["token"]),
        ("serve", artifact, "--token-file", fifo["token"]),
        ("serve", "--config", fifo["t.toml"]),
        ("evaluate", artifact, "--data", f"csv:{fifo['t.csv']}"),
        ("evaluate", artifact, "--data", f"npz:{fifo['x.npz']}"),
        ("family", fifo["net.onnx"], "--data", f"{fifo['t.csv']}:label", "-o", tmp_path / "f"),
    ):
        done = slotool(*command)
        assert done.exit_code == 2, (command, done.stderr)
        assert "fault of slotool" not in done.stderr
