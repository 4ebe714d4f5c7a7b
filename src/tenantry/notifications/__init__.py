"""What is mailed, and its delivery."""
