"""The rule set: its JSON form, its consistency, its export to other routers."""
