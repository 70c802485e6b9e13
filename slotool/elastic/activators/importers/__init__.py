"""Trained networks of other libraries as chains of dense and convolutional layers."""
