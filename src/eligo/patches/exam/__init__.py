"""The embedded exam: what selecting patches costs, on generated scenes."""
