"""The pool as a `gymnasium.vector.VectorEnv`, in place of Gymnasium's AsyncVectorEnv."""

from envpool_bridge.vector_env.factory import make_vec
from envpool_bridge.vector_env.pool_vector_env import PoolVectorEnv

__all__ = ["PoolVectorEnv", "make_vec"]
