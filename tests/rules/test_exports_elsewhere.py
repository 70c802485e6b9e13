"""Exported rules load where routing happens: by LiteLLM, by the parser of vLLM's semantic router, by Envoy's schema.

``SLOTOOL_ROUTERS_PYTHON`` names a Python with ``litellm``, ``vllm-sr`` and ``xds-protos``; by default it is this one.
Their packages want others than slotool's tests do, so each is asked in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import slotool as library
from slotool.errors import InputError
from slotool.rules import OSFA, RuleSet, Seq, from_point
from slotool.rules.exports import FORMATS
from slotool.rules.policies.cascades import Cascade, Step
from slotool.testing.rules import family_outcomes

ROUTERS = os.environ.get("SLOTOOL_ROUTERS_PYTHON", sys.executable)


def elsewhere(package: str, script: str, *arguments: object, cwd: Path) -> str:
    """What ``script`` prints in the Python that has ``package``; skips where none has it."""
    known = [ROUTERS, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"]
    if subprocess.run(known, check=False).returncode:
        pytest.skip(f"{ROUTERS} has no {package}; SLOTOOL_ROUTERS_PYTHON names a Python that has it")
    environment = {**os.environ, "PYTHONPATH": str(cwd), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run([ROUTERS, "-c", script, *map(str, arguments)], capture_output=True, text=True, cwd=cwd,
                          env=environment, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def rules() -> RuleSet:
    """Three tiers for the least cost: the best version, a cascade, and a pair whose surer answer goes out."""
    made = library.gen_rules(family_outcomes(4000), tolerances=(0.0, 0.2, 0.4), tolerance_kind="absolute",
                             objective="cost", confidence=0.95, best="large").rules  # fmt: skip
    cascade = Cascade((Step("small", 0.8), Step("large")))
    policies = [OSFA("large"), cascade, Seq("small", "large", 0.5)]
    changed = [{**vars(rule), "point": own.point} for rule, own in zip(made.rules, policies, strict=True)]
    return RuleSet(**{**vars(made), "rules": tuple(type(made.rules[0])(**own) for own in changed)})


def test_litellm_answers_by_the_tier_that_the_model_names(rules: RuleSet, tmp_path: Path) -> None:
    """Versions are models of a second provider: ``small`` is sure of short questions."""
    named = json.loads(FORMATS["json"](rules))
    for tier in named["tiers"]:
        for step in tier["route"]["steps"]:
            step["ask"] = f"fake/{step['ask']}"
            if "accept" in step:
                step["accept"]["version"] = f"fake/{step['accept']['version']}"
    source = FORMATS["litellm"](rules)
    (tmp_path / "tiers.py").write_text(source)
    script = """
import json, math, sys
import litellm, tiers
from litellm import Choices, Message, ModelResponse
from litellm.types.utils import ChatCompletionTokenLogprob, ChoiceLogprobs

tiers.ROUTES["tiers"] = json.loads(sys.argv[1])
asked = []

class Fake(litellm.CustomLLM):
    def completion(self, model, messages, *args, optional_params, **kwargs):
        asked.append(model)
        assert optional_params.get("temperature") == 0.5, optional_params
        sure = 0.9 if len(messages[0]["content"]) < 10 else 0.3
        logprob = ChatCompletionTokenLogprob(token="a", logprob=math.log(sure), top_logprobs=[])
        message = Message(content=f"from {model}", role="assistant")
        return ModelResponse(choices=[Choices(message=message, logprobs=ChoiceLogprobs(content=[logprob]))])

litellm.custom_provider_map = [
    {"provider": "slotool", "custom_handler": tiers.handler},
    {"provider": "fake", "custom_handler": Fake()},
]
proxy = litellm.Router(model_list=[{"model_name": t["id"], "litellm_params": {"model": "slotool/" + t["id"]}}
                                   for t in tiers.ROUTES["tiers"]])
for tier in tiers.ROUTES["tiers"]:
    for question in ("short", "a question that is long"):
        asked.clear()
        found = proxy.completion(model=tier["id"], messages=[{"role": "user", "content": question}], temperature=0.5)
        print(tier["id"], found.choices[0].message.content, asked)
try:
    litellm.completion(model="slotool/none", messages=[{"role": "user", "content": "short"}])
except Exception as error:
    print("no tier" in str(error))
"""
    printed = elsewhere("litellm", script, json.dumps(named["tiers"]), cwd=tmp_path).splitlines()
    assert printed[-7:] == [
        "cost-0 from large ['large']",
        "cost-0 from large ['large']",
        "cost-0.2 from small ['small']",
        "cost-0.2 from large ['small', 'large']",
        "cost-0.4 from small ['small']",
        "cost-0.4 from large ['small', 'large']",
        "True",
    ]


def test_the_semantic_router_parses_its_configuration(rules: RuleSet, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(FORMATS["vllm-semantic-router"](rules))
    script = """
import json, sys
from cli.parser import parse_user_config
from cli.validator import validate_user_config

parsed = parse_user_config(sys.argv[1], log_summary=False)
errors = validate_user_config(parsed)
found = {}
for recipe in parsed.recipes:
    decision, = recipe.routing.decisions
    own = decision.algorithm.confidence if decision.algorithm else None
    found[recipe.name] = [[ref.model for ref in decision.modelRefs], own and own.threshold]
print(json.dumps({"errors": list(map(str, errors)), "recipes": found}))
"""
    found = json.loads(elsewhere("cli", script, "config.yaml", cwd=tmp_path).splitlines()[-1])
    pair = [["small", "large"], 0.8]
    # The surer answer is not what the router gives: the stricter tier serves.
    assert found == {"errors": [], "recipes": {"cost-0": [["large"], None], "cost-0.2": pair, "cost-0.4": pair}}


def test_envoy_s_schema_takes_the_route_configuration(rules: RuleSet, tmp_path: Path) -> None:
    (tmp_path / "routes.json").write_text(FORMATS["envoy"](rules))
    script = """
import json, pathlib
from envoy.config.route.v3 import route_pb2
from google.protobuf import json_format

text = pathlib.Path("routes.json").read_text()
host, = json_format.Parse(text, route_pb2.RouteConfiguration()).virtual_hosts
print(json.dumps([[{h.name: h.string_match.exact or h.present_match for h in own.match.headers}, own.route.cluster]
                  for own in host.routes]))
"""
    routes = json.loads(elsewhere("envoy.config.route", script, cwd=tmp_path))
    assert routes[0] == [{"tolerance": "0", "objective": "cost"}, "large"]
    assert routes[3] == [{"tolerance": "0.2", "objective": False}, "slotool"]
    assert routes[-1] == [{}, "large"]


def test_a_tier_that_no_stricter_one_can_serve_is_refused(rules: RuleSet) -> None:
    several = Cascade((Step("tiny", 0.7), Step("small", 0.8), Step("large")))
    for policy in (from_point(rules.rules[2].point), several):
        widest = replace(rules.rules[2], point=policy.point)
        only = RuleSet(**{**vars(rules), "rules": (widest,)})
        # Of cascades too: it is no advice to make rules of these.
        with pytest.raises(InputError, match=r"tier cost-0\.4: .*--policies osfa\b(?!,)"):
            FORMATS["vllm-semantic-router"](only)
