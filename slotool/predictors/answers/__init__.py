"""Choice of a predictor, operators measured here, and answers over a range of one fact."""
