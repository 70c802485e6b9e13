"""Models of any origin behind one interface: named tensors in and out, a signature, a task."""

from slotool.models.model import Model
from slotool.models.signature import Signature, TensorSpec
from slotool.models.tasks import Classification, MultiLabel, Regression, Task, Text

__all__ = ["Classification", "Model", "MultiLabel", "Regression", "Signature", "Task", "TensorSpec", "Text"]
