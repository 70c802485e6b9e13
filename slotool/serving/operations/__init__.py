"""Server made from its settings: application, process, models, and changes at run time."""
