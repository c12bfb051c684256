"""`python -m studies`."""

from studies.cli import main

main()
