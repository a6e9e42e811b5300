"""What is run: each module lists the arms of a paper or a question, from what the profile says."""
