"""What happened and why: counts, and what tells people about them."""
