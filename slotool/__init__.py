"""slotool: profile, predict and serve neural networks so that latency and accuracy promises hold.

Everything that the command line does is a function here, imported when first used: ``slotool.predict("ResNet50")``.
"""

from typing import TYPE_CHECKING

from slotool import errors
from slotool.names_on_demand import names_on_demand

if TYPE_CHECKING:
    from slotool.api.adapt_predictor import adapt_predictor
    from slotool.api.build_tables import build_tables
    from slotool.api.calibrate import calibrate
    from slotool.api.capture import capture
    from slotool.api.choose_points import choose_points
    from slotool.api.compare_predictors import compare_predictors
    from slotool.api.doctor import doctor
    from slotool.api.evaluate import evaluate
    from slotool.api.evaluate_colocated import evaluate_colocated
    from slotool.api.evaluate_drift import evaluate_drift
    from slotool.api.evaluate_endpoints import evaluate_endpoints
    from slotool.api.evaluate_predictor import evaluate_predictor
    from slotool.api.evaluate_rules import evaluate_rules
    from slotool.api.export_rules import export_rules
    from slotool.api.family import family
    from slotool.api.files import load, save
    from slotool.api.gen_rules import gen_rules
    from slotool.api.gen_switching_plan import gen_switching_plan
    from slotool.api.generate_arrivals import generate_arrivals
    from slotool.api.generate_networks import generate_networks
    from slotool.api.import_outcomes import import_outcomes
    from slotool.api.loadtest import loadtest
    from slotool.api.named_networks import PackageNetworks
    from slotool.api.plan import plan
    from slotool.api.predict import predict
    from slotool.api.predict_points import predict_points
    from slotool.api.profile import profile, profile_colocated, profile_points
    from slotool.api.report import report
    from slotool.api.serve import serve
    from slotool.api.simulate import simulate
    from slotool.api.train import train_cnn, train_family, train_mlp
    from slotool.api.train_predictor import train_predictor
    from slotool.api.train_supernet import train_supernet
    from slotool.api.train_xmc import train_xmc
    from slotool.api.update_tables import update_tables

__version__ = "0.1.0"
__all__ = [
    "PackageNetworks",
    "__version__",
    "adapt_predictor",
    "build_tables",
    "calibrate",
    "capture",
    "choose_points",
    "compare_predictors",
    "doctor",
    "errors",
    "evaluate",
    "evaluate_colocated",
    "evaluate_drift",
    "evaluate_endpoints",
    "evaluate_predictor",
    "evaluate_rules",
    "export_rules",
    "family",
    "gen_rules",
    "gen_switching_plan",
    "generate_arrivals",
    "generate_networks",
    "import_outcomes",
    "load",
    "loadtest",
    "plan",
    "predict",
    "predict_points",
    "profile",
    "profile_colocated",
    "profile_points",
    "report",
    "save",
    "serve",
    "simulate",
    "train_cnn",
    "train_family",
    "train_mlp",
    "train_predictor",
    "train_supernet",
    "train_xmc",
    "update_tables",
]


# Where each function is; importing slotool imports none of them.
_MODULES = {
    "PackageNetworks": "named_networks",
    "adapt_predictor": "adapt_predictor",
    "build_tables": "build_tables",
    "calibrate": "calibrate",
    "capture": "capture",
    "choose_points": "choose_points",
    "compare_predictors": "compare_predictors",
    "doctor": "doctor",
    "evaluate": "evaluate",
    "evaluate_colocated": "evaluate_colocated",
    "evaluate_drift": "evaluate_drift",
    "evaluate_endpoints": "evaluate_endpoints",
    "evaluate_predictor": "evaluate_predictor",
    "evaluate_rules": "evaluate_rules",
    "export_rules": "export_rules",
    "family": "family",
    "gen_rules": "gen_rules",
    "gen_switching_plan": "gen_switching_plan",
    "generate_arrivals": "generate_arrivals",
    "generate_networks": "generate_networks",
    "import_outcomes": "import_outcomes",
    "load": "files",
    "loadtest": "loadtest",
    "plan": "plan",
    "predict": "predict",
    "predict_points": "predict_points",
    "profile": "profile",
    "profile_colocated": "profile",
    "profile_points": "profile",
    "report": "report",
    "save": "files",
    "serve": "serve",
    "simulate": "simulate",
    "train_cnn": "train",
    "train_family": "train",
    "train_mlp": "train",
    "train_predictor": "train_predictor",
    "train_supernet": "train_supernet",
    "train_xmc": "train_xmc",
    "update_tables": "update_tables",
}

# Functions that left, with what to call instead.
_SUCCESSORS = {
    "capture_applications": 'capture(slotool.PackageNetworks("keras", "all"), …)',
    "capture_zoo": 'capture(slotool.PackageNetworks("timm", "families"), …)',
    "estimate_rules": "gen_rules(…, dry_run=True)",
    "plan_tables": "build_tables(…, dry_run=True)",
    "switching_plan_cost": "gen_switching_plan(…, dry_run=True)",
    "train_colocation_predictor": "train_predictor(…)",
}

__getattr__ = names_on_demand(__name__, _MODULES, "slotool.api", _SUCCESSORS)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
