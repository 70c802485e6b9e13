"""Training of predictors on measured networks, and their scores on held-out and on later ones."""
