"""What a plugin of slotool looks like: one file for each thing it adds."""
