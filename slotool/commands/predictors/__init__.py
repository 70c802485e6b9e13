"""Commands that train, calibrate, evaluate and ask predictors of latency."""
