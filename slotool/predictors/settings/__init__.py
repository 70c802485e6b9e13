"""One predictor of many settings: device, backend, threads, batch size, precision."""
