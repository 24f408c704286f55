"""Input that is wrong on purpose: each piece gets one clear message, in little time and memory."""
