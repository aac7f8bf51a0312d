"""What one object is: its kind, its words, its tree. Knows no call."""
