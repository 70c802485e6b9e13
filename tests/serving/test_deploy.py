"""The files of ``deploy/``: what they name exists, and what can be run here is run."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from slotool.cli.app import command as command_line
from slotool.serving.front.accounts import CLIENTS_OWN
from slotool.serving.monitoring.metrics import Metrics
from tests.serving.live_server import HTTP
from tests.serving.test_serve_command import EXAMPLE, WAIT_S, serving

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = re.sub(r"\s*\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/slotool.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]] + [
    rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]
]
RECORDED = {rule.get("record") for group in ALERTS["groups"] for rule in group["rules"]}


def labels_by_metric() -> dict[str, set[str]]:
    """Every series that the server can show, with the labels that Prometheus sees."""
    collectors: Any = Metrics().registry._collector_to_names
    added = {"instance", "job", "le"}
    of_server = {name: {*collector._labelnames, *added} for collector, names in collectors.items() for name in names}
    of_process = re.findall("^# TYPE (process_.*) .*$", Metrics().text().decode(), re.MULTILINE)
    return of_server | dict.fromkeys(("up", *of_process), added)


def test_alerts_say_whether_somebody_is_woken() -> None:
    alerts = [rule for group in ALERTS["groups"] for rule in group["rules"] if "alert" in rule]
    assert {rule["labels"]["severity"] for rule in alerts} == {"critical", "warning"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_dashboard_and_alerts_read_metrics_that_the_server_has(expression: str) -> None:
    known = labels_by_metric()
    named = re.findall(r"\b(slotool_\w+|process_\w+|up\b)(?:\{([^}]*)\})?", expression)
    recorded = set(re.findall(r"\bslotool:[\w:]+", expression))
    assert named or recorded
    assert recorded <= RECORDED
    for metric, matchers in named:
        assert metric in known
        assert set(re.findall(r"(\w+)=~?\"", matchers)) <= known[metric]
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in re.split(r",\s*", group)}
    assert grouped <= {label for metric, _ in named for label in known[metric]}


def test_dashboard_and_alerts_of_missed_deadlines_leave_out_what_the_live_page_does() -> None:
    excluded = [found for text in EXPRESSIONS for found in re.findall(r'outcome!~"([^"]*)"', text)]
    assert len(excluded) > 2
    assert all(set(causes.split("|")) == CLIENTS_OWN for causes in excluded)


def test_the_image_copies_what_there_is_and_installs_extras_that_there_are() -> None:
    sources = [name for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M) for name in copied.split()]
    let_through = {
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert set(sources) == let_through
    assert all((ROOT / name).exists() for name in sources)
    (extras,) = re.findall(r"'\.\[(.*)\]'", DOCKERFILE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert f"python:{project['requires-python'].removeprefix('>=')}" in DOCKERFILE


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_the_image_has_the_libraries_of_the_system_that_wheels_lack() -> None:
    spec = importlib.util.find_spec("lightgbm")
    assert spec is not None
    library = Path(str(spec.origin)).parent / "lib" / "lib_lightgbm.so"
    read = subprocess.run(["readelf", "--dynamic", library], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", read.stdout))
    # Of Debian's base, which is in the slim image.
    base = re.compile(r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux.*)\.so\.\d")
    packages = {"libgomp.so.1": "libgomp1"}
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    missing = [name for name in needed if not base.fullmatch(name) and packages.get(name, name) not in final]
    assert missing == []


def test_the_service_is_served_found_healthy_and_stopped() -> None:
    check = json.loads(re.findall(r"HEALTHCHECK .*? CMD (\[.*\])", DOCKERFILE)[0])
    file = str(DEPLOY / "service.toml")
    with serving(ROOT, "--config", file, "--host", "127.0.0.1", "--grpc-port", "0") as (process, ready):
        healthy = [*check[:2], check[2].replace("8000", str(ready["port"]))]
        assert subprocess.run(healthy, capture_output=True).returncode == 0
        assert HTTP.post(f"{ready['url']}/compute", content=EXAMPLE.tobytes()).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert subprocess.run(healthy, capture_output=True).returncode == 1


def test_compose_mounts_what_there_is_and_asks_the_ports_that_are_served() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = tomllib.loads((DEPLOY / "service.toml").read_text())
    for described in compose["services"].values():
        for mount in described.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists()
        assert all(port.startswith("127.0.0.1:") for port in described.get("ports", ()))
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0]
    assert scraped["targets"] == [f"slotool:{service['port']}"]
    interval = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["global"]["scrape_interval"]
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["jsonData"]["timeInterval"] == interval
    assert f"127.0.0.1:{service['port']}:{service['port']}" in compose["services"]["slotool"]["ports"]


def options_of_serve() -> set[str]:
    commands: dict[str, Any] = command_line().commands
    return {option for parameter in commands["serve"].params for option in parameter.opts}


KINDS = ("ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler")


def manifest(kind: str) -> dict[str, Any]:
    """The only one of a kind in ``kubernetes.yaml``; all but the namespace itself lie in it."""
    (found,) = [document for document in documents("kubernetes.yaml") if document["kind"] == kind]
    assert kind == "Namespace" or found["metadata"]["namespace"] == "slotool"
    return found


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_manifests_start_a_server_by_options_that_there_are() -> None:
    described, deployment, service, budget, scaler = (manifest(kind) for kind in KINDS)
    served = tomllib.loads(described["data"]["service.toml"])
    assert {f"--{key}" for key in served} <= options_of_serve()
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": served["port"], "grpc": served["grpc-port"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == set(ports)
    volumes = {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    assert "replicas" not in deployment["spec"], "it would fight with the autoscaler"
    assert scaler["spec"]["minReplicas"] > budget["spec"]["maxUnavailable"]
    of_pods = [own["pods"]["metric"]["name"] for own in scaler["spec"]["metrics"] if own["type"] == "Pods"]
    page = (ROOT / "docs/how-to/deploy.md").read_text()
    assert all(name in labels_by_metric() or f"as: {name}" in page for name in of_pods)
    runtime, _ = documents("kserve.yaml")
    assert runtime["kind"] == "ClusterServingRuntime"
    (container,) = runtime["spec"]["containers"]
    arguments = container["args"]
    # Knative rejects a container of several ports, and probes of another port.
    (port,) = container["ports"]
    assert str(port["containerPort"]) == arguments[arguments.index("--port") + 1]
    assert container["readinessProbe"]["httpGet"]["port"] == port["containerPort"]
    assert {argument for argument in arguments if argument.startswith("--")} <= options_of_serve()


def test_pods_pass_the_restricted_standard_of_pod_security() -> None:
    namespace = manifest("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    template, runtime = manifest("Deployment")["spec"]["template"]["spec"], documents("kserve.yaml")[0]["spec"]
    for spec in (template, runtime):
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        allowed = {"configMap", "persistentVolumeClaim", "emptyDir", "secret", "projected", "downwardAPI", "ephemeral"}
        assert all(volume.keys() - {"name"} <= allowed for volume in spec.get("volumes", ()))
        for container in spec["containers"]:
            context = {**spec.get("securityContext", {}), **container["securityContext"]}
            assert context["runAsNonRoot"] is True
            assert context.get("runAsUser") != 0
            assert context["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "hostPort" not in str(container["ports"])


def test_systemd_hears_when_the_server_is_ready_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Type=notify" in (DEPLOY / "slotool.service").read_text()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with serving(ROOT, str(ROOT / "models" / "family")) as (process, _):
            assert manager.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(WAIT_S) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "slotool.service").read_text()
    command = shlex.split(re.findall(r"^ExecStart=(.*)$", text, re.M)[0])
    assert {argument for argument in command if argument.startswith("--")} <= options_of_serve()
    unit = tmp_path / "slotool.service"
    unit.write_text(text.replace(command[0], "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "slotool" in line]) == (0, [])


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first stage of the Dockerfile leaves in ``/opt/slotool``, its steps run one by one in a folder that
    holds only what they copy. What slotool depends on is there already: pip installs nothing else."""
    home, source = tmp_path_factory.mktemp("opt"), tmp_path_factory.mktemp("source")
    pip = f"{shlex.quote(sys.executable)} -m pip --quiet --python {home} install --no-deps --no-build-isolation"
    venv.create(home, symlinks=True)
    packages = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    stage = DOCKERFILE.split("\nWORKDIR /source\n")[1].split("\nFROM ")[0]
    for instruction, arguments in re.findall(r"^(COPY|RUN) (.*)$", stage, re.M):
        if instruction == "COPY":
            *copied, destination = arguments.split()
            for name in copied:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, source / destination, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, source / destination)
        else:
            command = arguments.replace("/opt/slotool/bin/pip install", pip)
            ran = subprocess.run(command, shell=True, cwd=source, capture_output=True, text=True)
            assert ran.returncode == 0, f"{arguments}\n{ran.stderr}"
    return home


@pytest.mark.long
def test_the_steps_of_the_image_leave_a_slotool_that_has_what_it_ships(steps: Path) -> None:
    command = [steps / "bin" / "slotool", "predict", "--torch", "torch.nn:ReLU", "--input-shape", "8", "--json"]
    ran = subprocess.run(command, cwd=steps, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert list(steps.glob("lib/*/site-packages/slotool/shipped_datasets/*.parquet"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_configuration_and_alerts() -> None:
    checked = subprocess.run(["promtool", "check", "config", DEPLOY / "prometheus.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def series(metrics: Metrics, growth: dict[str, int]) -> list[dict[str, str]]:
    """What a server shows, as Prometheus stores it for forty minutes. ``growth``: beginnings of lines, each with by how
    much it grows a minute."""
    shown = []
    for line in metrics.text().decode().splitlines():
        name, _, value = line.rpartition(" ")
        if line[0] != "#" and value != "NaN":
            metric, _, labels = name.partition("{")
            labels = ",".join(filter(None, ('job="slotool",instance="a"', labels.rstrip("}"))))
            grows = sum(by for start, by in growth.items() if name.startswith(start))
            shown.append({"series": f"{metric}{{{labels}}}", "values": f"{value}+{grows}x40"})
    return shown


def healthy() -> Metrics:
    """Of a server with a worker, which has had no request yet."""
    metrics = Metrics()
    metrics.serves("m")
    metrics.workers.set_function(lambda: 1)
    return metrics


def no_worker(metrics: Metrics) -> None:
    metrics.workers.set_function(lambda: 0)


def all_late(metrics: Metrics) -> None:
    metrics.answered("m", "p", [1e6], late=1)


def beyond_its_rate(metrics: Metrics) -> None:
    metrics.dropped("m", "quota")


def one_tier(metrics: Metrics) -> None:
    metrics.watch_feedback("m", SimpleNamespace(accuracy=0.5, alarms=[1]))


def one_group(metrics: Metrics) -> None:
    metrics.violated("m", {"de": 1}, ["de", "fr"])


def reload_failed(metrics: Metrics) -> None:
    metrics.reloaded(False)


def stuck(metrics: Metrics) -> None:
    metrics.oldest_wait_s.set_function(lambda: 60)


def expires_within_a_week(metrics: Metrics) -> None:
    # Tests of Prometheus begin at 0.
    metrics.certificate_expiry_s.labels("server.pem").set_function(lambda: 6 * 86400)


def expires_later(metrics: Metrics) -> None:
    metrics.certificate_expiry_s.labels("server.pem").set_function(lambda: 60 * 86400)


def nothing(metrics: Metrics) -> None:
    pass


OK, LATE = (f'slotool_requests_total{{model="m",outcome="{outcome}"}}' for outcome in ("ok", "late"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    ("happened", "growth", "after", "fires"),
    [
        (nothing, {}, "10m", set()),
        (nothing, {OK: 60}, "10m", set()),
        (beyond_its_rate, {'slotool_requests_total{model="m",outcome="quota"}': 60}, "10m", set()),
        # None was ever in time: there is no rate of a series that no request has started.
        (all_late, {LATE: 60}, "10m", {"DeadlinesMissedFast"}),
        # One request in a minute or two is no traffic to wake somebody for.
        (all_late, {LATE: 1}, "40m", set()),
        (all_late, {OK: 92, LATE: 8}, "10m", set()),
        (all_late, {OK: 92, LATE: 8}, "40m", {"DeadlinesMissed"}),
        (all_late, {OK: 995, LATE: 5}, "40m", set()),
        (nothing, {"slotool_worker_restarts_total": 1}, "10m", {"WorkersRestarted"}),
        (no_worker, {}, "10m", {"NoWorkers"}),
        (one_tier, {}, "10m", {"GuaranteeViolated"}),
        (one_group, {}, "10m", {"GroupGuaranteeViolated"}),
        (reload_failed, {}, "10m", {"ReloadFailed"}),
        (stuck, {}, "10m", {"QueueStuck"}),
        (expires_within_a_week, {}, "10m", {"CertificateExpires"}),
        (expires_later, {}, "10m", set()),
        (nothing, {"slotool_cpu_throttled_seconds_total": 6}, "40m", {"Throttled"}),
        (None, {}, "10m", {"ServerDown"}),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_prometheus_fires_each_alert_for_what_it_is_about_and_no_other(
    tmp_path: Path, happened: Callable[[Metrics], None] | None, growth: dict[str, int], after: str, fires: set[str]
) -> None:
    shown = [{"series": 'up{job="slotool",instance="a"}', "values": f"{int(happened is not None)}x40"}]
    if happened is not None:
        metrics = healthy()
        happened(metrics)
        shown += series(metrics, growth)
    query = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": after,
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fires)],
    }
    test = {"interval": "1m", "input_series": shown, "promql_expr_test": [query]}
    document = {"rule_files": [str(DEPLOY / "alerts.yml")], "evaluation_interval": "30s", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    tested = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr
