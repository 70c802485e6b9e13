"""Rules for where slotool does not run: a file a format."""
