"""The pool behind the interfaces of other libraries: stable-baselines3's VecEnv and EnvPool."""
