"""Run the command line as `python -m seriatim`."""

from seriatim.cli import main

if __name__ == "__main__":
    main()
