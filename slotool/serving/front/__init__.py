"""What every front end shares, and the handlers of paths."""
