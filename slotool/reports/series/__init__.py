"""Plot data of tables: pure functions, one file per kind of table, so that no two renderers disagree."""
