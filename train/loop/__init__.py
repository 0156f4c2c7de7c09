"""The one training loop: updates, schedule, state that resumes exactly, progress."""
