"""Evidence for a guarantee: losses, groups, and bounds by counting and by betting."""
