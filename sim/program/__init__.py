"""The interface of schemes: worker and operations; the arithmetic of averages that all drivers share."""
