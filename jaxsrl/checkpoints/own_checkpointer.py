"""Orbax, for a process that writes and reads checkpoints by itself."""

import jax
import orbax.checkpoint as ocp


def own_checkpointer() -> ocp.Checkpointer:
    """A checkpointer of this process alone: Orbax's own waits for all processes that jax has joined (`jaxsrl.cluster.learners`)."""
    if not jax.distributed.is_initialized():
        return ocp.PyTreeCheckpointer()
    this = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=this, active_processes={this}, barrier_sync_key_prefix=f"jaxsrl-{this}"
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)
