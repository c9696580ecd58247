"""Loop nests: the form between block programs and printers."""
