"""The cases that are measured, the peers they are measured beside, and the asv suite."""
