"""Study and timing of the pixels family."""
