"""The frozen model that reads prompts: stock `transformers`, with images or without. Section 5."""
