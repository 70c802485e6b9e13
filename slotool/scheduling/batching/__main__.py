"""``python -m slotool.scheduling.batching POLICY``: compile a policy, behind all other work of the machine."""

import os
import sys

from slotool.scheduling.batching.registry import compile_policy

os.nice(19)
compile_policy(sys.argv[1])
