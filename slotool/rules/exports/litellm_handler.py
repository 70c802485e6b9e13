"""Provider of LiteLLM whose models are the tiers: ``slotool/cost-0.05`` asks the versions of that tier."""

from __future__ import annotations

from slotool.rules.exports.routes import as_python
from slotool.rules.ruleset.rules import RuleSet

# After the names of a tier's versions, LiteLLM's names of models, comes everything else from the request.
_HANDLER = '''

import asyncio  # noqa: E402

import litellm  # noqa: E402


def confidence_of(response: Any) -> float:
    """Return the geometric mean of token probabilities; change it to the outcome table's confidence."""
    logprobs = response.choices[0].logprobs
    tokens = logprobs.content if logprobs else None
    return math.exp(sum(token.logprob for token in tokens) / len(tokens)) if tokens else math.nan


class Tiers(litellm.CustomLLM):
    """Provider of models named by tiers."""

    def completion(self, model: str, messages: list, *args: Any, optional_params: dict, **kwargs: Any) -> Any:
        tier = next((tier for tier in ROUTES["tiers"] if tier["id"] == model), None)
        if tier is None:
            offered = ", ".join(tier["id"] for tier in ROUTES["tiers"])
            raise litellm.CustomLLMError(status_code=404, message=f"no tier {model!r}; there are {offered}")
        responses: dict[str, Any] = {}

        def ask(version: str) -> Version:
            def asked(request: list) -> Answer:
                options = {**optional_params, "logprobs": True}
                responses[version] = litellm.completion(model=version, messages=request, **options)
                return responses[version].choices[0].message.content, confidence_of(responses[version])

            return asked

        versions = {step["ask"]: ask(step["ask"]) for step in tier["route"]["steps"]}
        return responses[route(messages, versions, tier["tolerance"], tier["objective"])["version"]]

    async def acompletion(self, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(self.completion, *args, **kwargs)


handler = Tiers()
'''


def as_litellm(rules: RuleSet) -> str:
    """Return a Python file whose ``handler`` belongs into LiteLLM's ``custom_provider_map``."""
    return as_python(rules) + _HANDLER
