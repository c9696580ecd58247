"""What knows other frameworks."""
