"""Commands that plan fleets and simulate them."""
