"""What is asked and how it is judged: sources, recorded answers, graders, the sandbox."""
