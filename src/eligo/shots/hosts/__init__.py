"""The host: a frozen `transformers` model, with or without images, that answers prompts."""
