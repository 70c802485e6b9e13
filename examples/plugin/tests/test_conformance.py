"""The policy, the predictor and the data set, each held to slotool's conformance suite of its kind."""

from slotool_example.data import breast_cancer
from slotool_example.policy import HalfSlack
from slotool_example.predictor import NearestPredictor

from slotool.testing.datasets import DatasetConformance
from slotool.testing.policies import PolicyConformance
from slotool.testing.predictors import PredictorConformance


class TestHalfSlack(PolicyConformance):
    make = staticmethod(HalfSlack)


class TestNearest(PredictorConformance):
    make = staticmethod(NearestPredictor)


class TestBreastCancer(DatasetConformance):
    make = staticmethod(breast_cancer)
