"""PPO on CartPole, whose first attempt to write the last checkpoint fails."""

from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.checkpoints.store import CheckpointSaveError, CheckpointStore
from jaxsrl.experiment import cli

LAST = 20

if __name__ == "__main__":
    save, attempts = CheckpointStore.save, []

    def save_or_fail(self, step, arrays, metadata):
        attempts.append(step)
        if attempts.count(LAST) == 1 and step == LAST:
            raise CheckpointSaveError("no space left on the device")
        return save(self, step, arrays, metadata)

    CheckpointStore.save = save_or_fail
    cli(EXPERIMENT)
