"""What the commands start: a script under observation, and what is made of the recording."""
