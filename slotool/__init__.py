"""slotool: profile, predict and serve neural networks so that latency and accuracy promises hold.

Everything that the command line does is a function here, imported when first used: ``slotool.predict("ResNet50")``.
"""

from typing import TYPE_CHECKING

from slotool import errors
from slotool.names_on_demand import names_on_demand

# Imported when asked for; importing slotool imports none of them.
if TYPE_CHECKING:
    from slotool.commands.doctor import doctor
    from slotool.commands.elastic.build_tables import build_tables
    from slotool.commands.elastic.choose_points import choose_points
    from slotool.commands.elastic.evaluate import evaluate
    from slotool.commands.elastic.evaluate_endpoints import evaluate_endpoints
    from slotool.commands.elastic.family import family
    from slotool.commands.elastic.train import train_cnn, train_family, train_mlp, train_xmc
    from slotool.commands.elastic.train_supernet import train_supernet
    from slotool.commands.files import load, save
    from slotool.commands.networks.capture import capture
    from slotool.commands.networks.generate_networks import generate_networks
    from slotool.commands.planning.gen_switching_plan import gen_switching_plan
    from slotool.commands.planning.generate_arrivals import generate_arrivals
    from slotool.commands.planning.plan import plan
    from slotool.commands.planning.simulate import simulate
    from slotool.commands.predictors.adapt_predictor import adapt_predictor
    from slotool.commands.predictors.calibrate import calibrate
    from slotool.commands.predictors.evaluate_predictor import evaluate_predictor
    from slotool.commands.predictors.pareto import pareto
    from slotool.commands.predictors.predict import predict
    from slotool.commands.predictors.train_predictor import train_predictor
    from slotool.commands.profiling.profile import profile, profile_colocated, profile_points
    from slotool.commands.report import report
    from slotool.commands.rules.evaluate_drift import evaluate_drift
    from slotool.commands.rules.evaluate_rules import evaluate_rules
    from slotool.commands.rules.export_rules import export_rules
    from slotool.commands.rules.gen_rules import gen_rules
    from slotool.commands.rules.import_outcomes import import_outcomes
    from slotool.commands.serving.loadtest import loadtest
    from slotool.commands.serving.serve import serve
    from slotool.graphs.capture.networks import PackageNetworks

__version__ = "0.1.0"
__all__ = [
    "PackageNetworks",
    "__version__",
    "adapt_predictor",
    "build_tables",
    "calibrate",
    "capture",
    "choose_points",
    "doctor",
    "errors",
    "evaluate",
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
    "pareto",
    "plan",
    "predict",
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
]

__getattr__ = names_on_demand(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
