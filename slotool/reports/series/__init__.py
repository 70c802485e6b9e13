"""From tables to plots as data: pure functions, one file per kind of table, so that no two renderers disagree."""
