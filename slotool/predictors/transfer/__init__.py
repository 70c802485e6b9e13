"""Transfer of a trained predictor to a new setting by few labels."""
