"""Front end shared by all protocols, and the handlers of paths."""
