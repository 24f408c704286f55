"""What a scheme sees and can ask for; the arithmetic of averages that all drivers share."""
