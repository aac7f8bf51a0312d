"""Whole functions as the steps they took: tapes, and what tells calls apart."""
