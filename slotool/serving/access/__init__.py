"""Who is let in, how often, and by which certificate."""
