"""Words: prompt templates, text encoders, batches of word vectors."""
