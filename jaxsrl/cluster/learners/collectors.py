"""Collectors of one of several learner processes: of its rows alone, and in step with the other processes."""

import dataclasses

import numpy as np

from envpool_bridge.spec.tree import Tree, map_leaves
from jaxsrl.cluster.collectors import ClusterCollectors
from jaxsrl.cluster.hosts.collector import ClusterCollector
from jaxsrl.cluster.learners.coordinator import ProcessCoordinator
from jaxsrl.cluster.learners.synchronized_collector import SynchronizedCollector
from jaxsrl.cluster.placement import OpenEngine
from jaxsrl.collect.collector import Collector, CollectorConfig
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.plan.passes.learner_processes import replicas_of
from jaxsrl.plan.placement import device_of_each_replica
from jaxsrl.training.collectors import CollectorFactory
from jaxsrl.training.setup import TrainingSetup


class ProcessCollectors(CollectorFactory):
    """Makes the collector of this process's replicas: pools of this machine, or environment hosts of a cluster.

    Args:
        setup: Setup with a plan for several processes.
        coordinator: Coordinator of the processes.
        open_engine: Engine of the cluster that the environments are on; None for pools of this machine.

    Raises:
        UserError: If the environments cannot be sent to other nodes.
    """

    def __init__(self, setup: TrainingSetup, coordinator: ProcessCoordinator, open_engine: OpenEngine | None) -> None:
        super().__init__(setup)
        self._processes, self._consensus = coordinator.processes, coordinator.consensus
        self._cluster = ClusterCollectors(setup, open_engine) if open_engine is not None else None
        self._replicas = replicas_of(setup.plan, self._processes.process_id, self._processes.num_processes)
        self.num_rows = setup.plan.shape.num_rows * len(self._replicas)
        self.first_row = setup.plan.shape.num_rows * self._replicas.start

    def make_collector(self, config: CollectorConfig) -> Collector:
        first_row = self.first_row
        config = dataclasses.replace(config, agent_state=self._spread(config.agent_state, first_row))
        if self._cluster is None:
            devices = device_of_each_replica(config.plan.inference)
            collector: Collector = PoolCollector(config, devices, self._setup.lifecycle, self._replicas)
        else:
            collector = ClusterCollector(*self._cluster.open(config), self._replicas)
        failed = self._processes.raise_failed
        return SynchronizedCollector(collector, self._consensus, first_row, config.plan.num_rows, failed)

    def close(self, failure: BaseException | None) -> None:
        """Releases the cluster; process 0, which owns it, does so after the others."""
        if self._cluster is None:
            return
        # After a failure each process ends for itself: one that waited for the others would wait for those that wait for it.
        if failure is None and self._processes.is_main:
            self._processes.wait_at_barrier()
        self._cluster.close(failure)
        if failure is None and not self._processes.is_main:
            self._processes.wait_at_barrier()

    def _spread(self, tree: Tree, first_row: int) -> Tree:
        """Returns leaves [b, ...] of this process's rows as leaves [B, ...] of the run's, where collectors look them up."""

        def spread(leaf: np.ndarray) -> np.ndarray:
            if len(leaf) == self._setup.plan.num_rows:
                return leaf
            every = np.zeros((self._setup.plan.num_rows, *leaf.shape[1:]), leaf.dtype)
            every[first_row : first_row + len(leaf)] = leaf
            return every

        return map_leaves(spread, tree)
