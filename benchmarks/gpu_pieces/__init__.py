"""The pieces of ``make gpu``, one file each; ``benchmarks.gpu`` runs them."""
