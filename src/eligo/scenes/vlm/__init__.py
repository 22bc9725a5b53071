"""A small vision-language model that lives in the embedded world."""
