"""Rule set: its JSON form and its consistency."""
