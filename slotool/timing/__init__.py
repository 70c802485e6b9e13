"""The timer of every latency that slotool prints: one call, or variants in turns."""
