"""A layout as a MuJoCo model: the indices in its arrays, and its physics, 15 substeps of 5 ms in each step."""

import dataclasses
from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.layout import AGENT_SIZE, RAMP_SIZE, Layout
from envpool_bridge.envs.hide_and_seek.mujoco import mujoco
from envpool_bridge.envs.hide_and_seek.phases import rows_of_walls

SUBSTEPS, SUBSTEP_SECONDS = 15, 0.005
MAX_CONTROL = 0.9  # of a motor, whose gear is 100: 90 N, 90 Nm
HIDER_COLOR, SEEKER_COLOR = "0.2 0.45 0.95 1", "0.9 0.2 0.2 1"
# Sleeping bodies cost nothing until something touches them: half of the time of physics. Older versions lack the flag.
_SLEEP = int(getattr(mujoco.mjtEnableBit, "mjENBL_SLEEP", 0))
_JOINTS = 4  # of an agent or thing: x, y, z, turn about z

# The Jacobian is dense regardless of the number of joints. MuJoCo takes a sparse one from 60 degrees of freedom on, with which the
# solver of MuJoCo 4.0.0 diverges at times, and an agent between two boxes leaves the world with 500 m/s.
_HEAD = """<mujoco model="hide-and-seek">
<compiler angle="radian"/>
<option timestep="{timestep}" integrator="Euler" solver="Newton" cone="pyramidal" iterations="100" gravity="0 0 -50" \
jacobian="dense"/>
<visual><headlight ambient="0.5 0.5 0.5" diffuse="0.4 0.4 0.4" specular="0 0 0"/><global offwidth="1024" offheight="1024"/></visual>
<asset><mesh name="ramp" vertex="-.25 -.25 -.25  .25 -.25 -.25  -.25 -.25 .25  .25 -.25 .25  -.25 .25 -.25  .25 .25 -.25"/></asset>
<worldbody>
<body name="floor"><geom name="floor" type="plane" pos="{middle} {middle} 0" size="{middle} {middle} 1" condim="3" friction="0.2" \
rgba="0.85 0.85 0.85 1"/></body>
"""
_AGENT = """<body name="agent{i}" pos=".15 .15 .15">
<joint name="agent{i}:x" type="slide" axis="1 0 0" damping="10"/><joint name="agent{i}:y" type="slide" axis="0 1 0" damping="10"/>
<joint name="agent{i}:z" type="slide" axis="0 0 1" damping="1"/><joint name="agent{i}:turn" type="hinge" axis="0 0 1" damping="10"/>
<geom name="agent{i}" type="sphere" size=".15" mass="1" friction=".01" rgba="{color}"/>
<geom name="agent{i}:left" type="sphere" size=".05" pos="-.13 -.075 -.05" mass="0" friction=".01" rgba="{color}"/>
<geom name="agent{i}:right" type="sphere" size=".05" pos=".13 -.075 -.05" mass="0" friction=".01" rgba="{color}"/>
</body>
"""
_THING = """<body name="{name}" pos="{x} {y} {z}">
<joint name="{name}:x" type="slide" axis="1 0 0" damping="{damping}"/><joint name="{name}:y" type="slide" axis="0 1 0" \
damping="{damping}"/><joint name="{name}:z" type="slide" axis="0 0 1" damping="{damping}"/>
<joint name="{name}:turn" type="hinge" axis="0 0 1" damping="{damping}"/>
<geom name="{name}" {shape} mass="1" friction="{friction}" condim="3" rgba="{color}"/>
</body>
"""
_WALL = """<body name="wall{i}" pos="{x} {y} {z}"><geom name="wall{i}" type="box" size="{half_x} {half_y} {z}" group="1" \
friction="{friction}" rgba="0 1 0 {alpha}"/></body>
"""
_MOTOR = '<motor name="{name}" joint="{name}" gear="100" ctrllimited="true" ctrlrange="-{limit} {limit}"/>\n'


@dataclasses.dataclass(frozen=True)
class Scene:
    """A compiled layout of N bodies: agents first, then M things, boxes before ramps.

    Attributes:
        model: Model of MuJoCo.
        data: State of the model.
        num_agents: Number of agents, A.
        num_hiders: Number of hiders, the first agents.
        num_boxes: Number of boxes, the first things.
        num_ramps: Number of ramps, the other things.
        box_sizes: [boxes, 3] metres, unrotated.
        half_sizes: [M, 3] metres, of the cuboids for distances to things.
        bodies: [N] ids.
        geoms: [N] ids of ray targets.
        position: [N, 4] x, y, z (metres, of the lower left corner before rotation), turn (radians); a view of the
            state.
        velocity: [N, 4] of the same per second; a view of the state.
        offsets: [N, 3] from that corner to the center.
        motors: [A, 3] forces along x and y and the torque, in [-0.9, 0.9]; a view of the controls.
    """

    model: Any
    data: Any
    num_agents: int
    num_hiders: int
    num_boxes: int
    num_ramps: int
    box_sizes: np.ndarray
    half_sizes: np.ndarray
    bodies: np.ndarray
    geoms: np.ndarray
    position: np.ndarray
    velocity: np.ndarray
    offsets: np.ndarray
    motors: np.ndarray

    @property
    def num_things(self) -> int:
        """Number of boxes and ramps, M."""
        return self.num_boxes + self.num_ramps

    def advance(self) -> bool:
        """Runs the physics of one step and updates positions; returns False if it diverged and the state is invalid."""
        start = self.data.time
        mujoco.mj_step(self.model, self.data, SUBSTEPS)
        mujoco.mj_kinematics(self.model, self.data)
        # MuJoCo restarts at time 0 when it detects bad numbers.
        return self.data.time > start + (SUBSTEPS - 0.5) * SUBSTEP_SECONDS

    def centers(self) -> np.ndarray:
        """Returns the centers, [N, 3] metres."""
        return self.position[:, :3] + self.offsets


def make_scene(layout: Layout, floor_size: float, wall_friction: float) -> Scene:
    """Compiles a layout.

    Args:
        layout: Positions of all things.
        floor_size: Side of the floor, metres; things outside still stand on it.
        wall_friction: Coefficient of friction of all walls.
    """
    model = mujoco.MjModel.from_xml_string(scene_xml(layout, floor_size, wall_friction))
    model.opt.enableflags |= _SLEEP
    data = mujoco.MjData(model)
    agents, boxes, ramps = layout.num_agents, len(layout.boxes), len(layout.ramps)
    half_sizes = np.concatenate([layout.box_sizes / 2, np.full((ramps, 3), RAMP_SIZE / 2)])
    offsets = np.concatenate([np.full((agents, 3), AGENT_SIZE / 2), half_sizes])
    count = agents + boxes + ramps
    bodies = np.arange(model.nbody - count, model.nbody)
    position, velocity = data.qpos.reshape(count, _JOINTS), data.qvel.reshape(count, _JOINTS)
    position[:, :2] = np.concatenate([layout.agents, layout.boxes, layout.ramps])
    mujoco.mj_forward(model, data)
    return Scene(
        model=model,
        data=data,
        num_agents=agents,
        num_hiders=layout.num_hiders,
        num_boxes=boxes,
        num_ramps=ramps,
        box_sizes=layout.box_sizes,
        half_sizes=half_sizes,
        bodies=bodies,
        geoms=model.body_geomadr[bodies],
        position=position,
        velocity=velocity,
        offsets=offsets,
        motors=data.ctrl.reshape(agents, 3),
    )


def scene_xml(layout: Layout, floor_size: float, wall_friction: float) -> str:
    """Returns the model as MJCF; see `make_scene`."""
    parts = [_HEAD.format(timestep=SUBSTEP_SECONDS, middle=floor_size / 2)]
    for number, row in enumerate(rows_of_walls(layout.walls)):
        parts.append(_wall_xml(number, row.tolist(), layout.walls[number].outer, wall_friction))
    for number in range(layout.num_agents):
        color = HIDER_COLOR if number < layout.num_hiders else SEEKER_COLOR
        parts.append(_AGENT.format(i=number, color=color))
    for number, size in enumerate(layout.box_sizes):
        parts.append(_box_xml(number, size))
    for number in range(len(layout.ramps)):
        half = RAMP_SIZE / 2
        names = {"name": f"ramp{number}", "x": half, "y": half, "z": half, "color": "0.95 0.75 0.2 1"}
        parts.append(_THING.format(**names, damping=0.1, friction=0.01, shape='type="mesh" mesh="ramp"'))
    parts.append("</worldbody>\n<actuator>\n")
    for number in range(layout.num_agents):
        parts += [_MOTOR.format(name=f"agent{number}:{joint}", limit=MAX_CONTROL) for joint in ("x", "y", "turn")]
    parts.append("</actuator>\n<equality>\n")
    welds = (f'<weld name="grip{i}" body1="agent{i}" body2="floor" active="false"/>' for i in range(layout.num_agents))
    return "".join([*parts, *welds, "</equality>\n</mujoco>\n"])


def _box_xml(number: int, size: np.ndarray) -> str:
    x, y, z = (float(extent) / 2 for extent in size)
    names = {"name": f"box{number}", "x": x, "y": y, "z": z, "color": "0.75 0.6 0.45 1"}
    return _THING.format(**names, damping=0.01, friction=0.2, shape=f'type="box" size="{x} {y} {z}"')


def _wall_xml(number: int, row: list[float], outer: bool, friction: float) -> str:
    x, y, half_x, half_y, top = row
    alpha = 0.1 if outer else 1  # rays ignore geoms with alpha 0
    return _WALL.format(i=number, x=x, y=y, z=top / 2, half_x=half_x, half_y=half_y, friction=friction, alpha=alpha)
