"""Supernets (superserve, SubNetAct): one network of shared weights, of which every query takes the part it needs.

``wrap`` finds where an existing network can be made smaller (``Space``): LayerSelect leaves residual blocks out,
WeightSlice uses the first channels, units or heads of a layer, SubnetNorm gives each subnet the batch statistics that
its own activations have. ``Supernet`` is all of that as an elastic model whose points are subnets.
"""
