"""SLO-NNs of networks that are no chain of ReLU layers: the last dense layer gets tables, the rest stays as it is."""
