"""The pieces of ``make gpu``, one file each; ``tests.perf.gpu`` runs them."""
