"""The commands' work: embed, train, predict, evaluate. Sections 2 and 7."""
