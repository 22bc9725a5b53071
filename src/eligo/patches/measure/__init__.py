"""How good a model is: recalls and ranks of whole sets."""
