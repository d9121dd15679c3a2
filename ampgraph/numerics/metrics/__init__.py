"""How far two outputs are apart."""
