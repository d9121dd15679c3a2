"""What a page is made of, as files."""
