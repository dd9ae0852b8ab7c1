"""The experiment of a run, again: `jaxsrl train --config RUN/config.json` runs this file."""

from jaxsrl.experiment import cli

if __name__ == "__main__":
    cli(None)
