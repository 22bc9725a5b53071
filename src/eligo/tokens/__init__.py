"""Which vision tokens survive inside the language model?"""
