"""Plugin of pytest that puts PoolVectorEnv in the place of Gymnasium's AsyncVectorEnv, in a process of its own."""

import gymnasium.vector

from envpool_bridge.vector_env import PoolVectorEnv

gymnasium.vector.AsyncVectorEnv = PoolVectorEnv  # before the tests import it
