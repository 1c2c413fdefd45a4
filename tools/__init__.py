"""What developers run to make files that are in the repository."""
