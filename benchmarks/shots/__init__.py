"""Study, learner training and timing of `eligo.shots`."""
