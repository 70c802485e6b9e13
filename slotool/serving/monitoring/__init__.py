"""Monitoring: metrics, statistics, access log, spans, live figures, labels and guarantees."""
