"""Hide-and-seek on current MuJoCo: teams, boxes and ramps in a room with walls. Numpy and MuJoCo only.

Source: Baker et al. 2020, "Emergent tool use from multi-agent autocurricula" (arXiv:1909.07528), in the configuration
of SRL (Mei et al. 2023, arXiv:2306.16688). This is a new implementation; docs/environments/hide_and_seek.md lists its
differences from the original.

A step of `env.HideAndSeek` goes through the files in this order: `grips` and `locks` (effects of hands), MuJoCo
(`scene`), `vision`, `rewards`, `observations`. An episode starts with a `layout`, drawn with `walls` and `placement`.
"""
