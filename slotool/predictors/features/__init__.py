"""Features of networks that predictors are fitted to: costs by type of operator, amounts of work, prices."""
