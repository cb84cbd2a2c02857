"""Shared by the SQL stores: keys of tables, and a table with a journal and an index."""
