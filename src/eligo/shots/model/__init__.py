"""The pointer selectors: configs, V0 to V3, their losses and what they return."""
