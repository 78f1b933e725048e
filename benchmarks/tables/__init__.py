"""The measured tables of README.md and docs/, as lines of Markdown, each made from files in results/."""
