"""Hide-and-seek on planar bodies with heights, stepped for all environments of a worker in one call of a compiled kernel.

Agents are spheres in three dimensions. Boxes and ramps turn and slide on the floor; their shapes have heights, so that
agents stand on them and see over them. `state` holds the arrays of a world, and `compiled` says how functions are compiled.
A step goes through `hands`, `physics` (`contacts`, `faces`, `solver`), `sight`, `play` and `observe`. An episode begins in
`start`, on `rooms`. `rows` puts the kernel behind the pool's protocol, and `env` behind PettingZoo's.
"""
