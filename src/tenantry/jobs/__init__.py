"""What the worker runs in the background, and the queue that it comes from."""
