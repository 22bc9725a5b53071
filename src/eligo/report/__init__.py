"""Pictures and pages of what was selected and what that cost; imports no family, nor the scenes."""
