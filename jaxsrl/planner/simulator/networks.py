"""Published line rates of networks, for hosts elsewhere. Real networks are slower under load."""

from jaxsrl.planner.simulator.scenario import Network

_GIGABIT = 1e9 / 8

NETWORKS = {
    "10gbe": Network("10 Gb/s Ethernet, TCP (IEEE 802.3ae; 50 us assumed)", 10 * _GIGABIT, 50e-6),
    "100gbe": Network("100 Gb/s Ethernet, TCP (IEEE 802.3ba; 30 us assumed)", 100 * _GIGABIT, 30e-6),
    "hdr": Network("InfiniBand HDR, 200 Gb/s a port (NVIDIA ConnectX-6; 5 us assumed)", 200 * _GIGABIT, 5e-6),
    "ndr": Network("InfiniBand NDR, 400 Gb/s a port (NVIDIA ConnectX-7; 5 us assumed)", 400 * _GIGABIT, 5e-6),
}
"""Networks by name: one direction of one host's connection. Latency is from process to process, for a few kilobytes."""
