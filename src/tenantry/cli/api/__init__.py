"""What the commands share that use a service through its API: options, credentials, answers and failures."""
