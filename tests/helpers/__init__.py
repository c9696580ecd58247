"""Programs, references and runners that several tests share."""
