"""Simulate scheduling policies on measured latencies, serve with one of them, and send it a load."""

import slotool

slotool.train_family("family", data="digits", epochs=30)
outcomes = slotool.evaluate("family", "outcomes.parquet", repeats=1)
slotool.profile_points("family", out="latency.parquet", co_runners=[0], batch_sizes=[1, 4, 16, 64], max_seconds=0.5)
slotool.generate_arrivals("bursty", rate=120000, cv2=4, duration_s=1, out="arrivals.parquet")
print(slotool.simulate("latency.parquet", "arrivals.parquet", 10.0, outcomes="outcomes.parquet"))

tables = {"latency": "latency.parquet", "outcomes": "outcomes.parquet"}
with slotool.serve("family", policy="value-iteration", deadline_ms=20, **tables) as server:
    tested = slotool.loadtest(server.url, rate=100, duration_s=5, deadline_ms=20, data="digits")
print(tested)
