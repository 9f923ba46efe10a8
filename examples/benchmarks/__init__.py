"""What an update and the image pipeline cost."""
