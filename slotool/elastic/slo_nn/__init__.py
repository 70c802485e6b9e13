"""Node Activators (slo-aware-neural-networks): per query, only the nodes of a ReLU network that this input needs.

``MLP`` describes the network, a ``Ranker`` puts similar inputs of a layer in one bucket, ``NodeLists`` rank the nodes
per bucket, ``ConfidenceTables`` say how well each k will do, and ``SloNN`` is all of that as an elastic model.
"""
