"""Training and measuring retrieval models: data, augmentation, objective, exam."""
