"""How names become addresses, and which address goes first."""
