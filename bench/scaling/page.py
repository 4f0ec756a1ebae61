"""Writes the tables and the picture of docs/scaling.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

from bench.scaling.burst import BEFORE_S, BURST_S, LEAST, POD_S, Second
from bench.scaling.costs import CALIBRATED, Costs, Level
from bench.scaling.simulation import TURN_CALLS, Found

ALLOWED = 0.15
"""How far the simulated rate may be from the measured one."""

BUSY = 0.7
"""Planned utilisation of a core; near 1 the queue grows without bound."""

WANTED = 100_000
"""Calls per second of the fleet."""

MODELS = 10_000

_NETWORK = 10e9 / 8
"""Bytes per second of a machine's network: 10 gigabits."""

_MEMORY = 256 << 30
"""Bytes of a machine's memory."""


class Point(NamedTuple):
    """One number of callers: measured, and simulated."""

    measured: Level
    simulated: Found

    @property
    def error(self) -> float:
        """The simulated rate against the measured one; 0 is equal."""
        return self.simulated.rate / self.measured.rate - 1


def cost_table(costs: Costs) -> str:
    """Returns what a call costs in each process."""
    lines = ["| process | a lone call | of a turn | of each call in it | in turns of 32 |", "|---|---|---|---|---|"]
    for name, cost in {"gateway": costs.gateway, "callers": costs.loader}.items():
        shares = f"{_ms(cost.turn)} | {_ms(cost.call)}"
        lines.append(f"| {name} | {_ms(cost.of(1))} | {shares} | {_ms(cost.each(TURN_CALLS))} |")
    turns = ", ".join(f"{size:.1f}: {_ms(seconds)}" for size, seconds in zip(*costs.worker))
    worker = costs.worker
    lines.append(f"| worker | {_ms(worker.of(1))} | {turns} | | {_ms(worker.each(TURN_CALLS))} |")
    lines += [
        "",
        f"A request has {costs.request_bytes:,} bytes, a reply {costs.reply_bytes:,}. A worker has "
        f"{costs.worker_bytes / 2**20:.0f} MiB that it shares with no other, and answers {costs.start:.1f} s after "
        f"`cutaway serve` was started. The time of a piece of work varies by {costs.spread:.0%} (standard deviation).",
    ]
    return "\n".join(lines)


def curve_table(points: Sequence[Point]) -> str:
    """Returns measured and simulated rates; says whether they agree."""
    lines = [
        "| callers | calls/s | simulated | | p50 | simulated | calls in a turn | simulated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for measured, simulated in points:
        mark = " (fitted)" if measured.callers in CALIBRATED else ""
        lines.append(
            f"| {measured.callers}{mark} | {measured.rate:.0f} | {simulated.rate:.0f} "
            f"| {simulated.rate / measured.rate - 1:+.0%} | {_ms(measured.latency)} | {_ms(simulated.latency)} "
            f"| {measured.turn:.1f} | {simulated.turn:.1f} |"
        )
    worst = max(points, key=lambda point: abs(point.error))
    agrees = "Every" if abs(worst.error) <= ALLOWED else "Not every"
    others = max(0.0, *(point.measured.others for point in points))
    lines += [
        "",
        f"{agrees} rate is within {ALLOWED:.0%}; the worst is {worst.error:+.0%}, with {worst.measured.callers} "
        f"callers. Other processes of the machine used {others:.1f} CPUs at most.",
    ]
    return "\n".join(lines)


def fleet_table(costs: Costs) -> str:
    """Returns what `WANTED` calls per second and `MODELS` models need."""
    lines = [f"| for {WANTED:,} calls/s | in turns of 32 | lone calls |", "|---|---|---|"]
    for name, cost in (("gateways (cores)", costs.gateway), ("workers (cores)", costs.worker)):
        lines.append(f"| {name} | {WANTED * cost.each(TURN_CALLS) / BUSY:,.0f} | {WANTED * cost.of(1) / BUSY:,.0f} |")
    to, back = (WANTED * each * 8 / 1e9 for each in (costs.request_bytes, costs.reply_bytes))
    gateway = BUSY / costs.gateway.each(TURN_CALLS)
    lines += [
        f"| Gbit/s to the gateways, and back | {to:.1f}, {back:.1f} | the same |",
        f"| calls/s of one gateway at {BUSY:.0%} | {gateway:,.0f} | {BUSY / costs.gateway.each(1):,.0f} |",
        f"| calls/s of one worker at {BUSY:.0%} | {BUSY / costs.worker.each(TURN_CALLS):,.0f} "
        f"| {BUSY / costs.worker.of(1):,.0f} |",
        "",
        f"A reply of {_NETWORK / gateway / 2**20:.2f} MiB, {_NETWORK / gateway / costs.reply_bytes:.0f} times this "
        "one, fills 10 Gbit/s of a gateway before its core is busy: with small replies the gateway's processor is full "
        "first, with larger ones its network.",
        "",
        f"{MODELS:,} models of this size, each with one worker, need {MODELS * costs.worker_bytes / 2**40:.1f} TiB: "
        f"{-(-MODELS * costs.worker_bytes // _MEMORY)} machines with 256 GiB, whatever the load.",
    ]
    return "\n".join(lines)


def burst_table(bursts: Mapping[str, tuple[float, Sequence[Second]]]) -> str:
    """Returns what happens to tenfold load, by policy: the rate before it, and its seconds."""
    lines = [
        "| | calls/s before, in the burst | workers, at most | p50 before | worst second | at the burst's end "
        "| refused | last refusal after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (rate, seconds) in bursts.items():
        during = [each for each in seconds if BEFORE_S < each.at <= BEFORE_S + BURST_S]
        refused = sum(each.refused for each in during)
        last = max((each.at - BEFORE_S for each in during if each.refused), default=0)
        before = next(each for each in seconds if each.at == BEFORE_S)
        lines.append(
            f"| {name} | {rate:,.0f}, {10 * rate:,.0f} | {LEAST} → {max(each.workers for each in seconds)} "
            f"| {_ms(before.latency)} | {_ms(max(each.latency for each in during))} | {_ms(during[-1].latency)} "
            f"| {refused / (10 * rate * BURST_S):.0%} | {last:.0f} s |"
        )
    lines += ["", f"A pod takes {POD_S:.0f} s before its model begins to load: an assumption."]
    return "\n".join(lines)


def draw(points: Sequence[Point], bursts: Mapping[str, tuple[float, Sequence[Second]]], to: Path) -> None:
    """Draws the curve and the bursts."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curve, latency, *panels) = pyplot.subplots(
        1, 2 + len(bursts), figsize=(4 * (2 + len(bursts)), 3.4), layout="constrained"
    )
    callers = [point.measured.callers for point in points]
    for axes, what, scale, unit in ((curve, "rate", 1, "calls/s"), (latency, "latency", 1000, "p50, ms")):
        axes.plot(callers, [scale * getattr(point.measured, what) for point in points], "o", label="measured")
        axes.plot(callers, [scale * getattr(point.simulated, what) for point in points], label="simulated")
        axes.set(xscale="log", xticks=callers, xticklabels=map(str, callers), xlabel="callers", ylabel=unit)
        axes.minorticks_off()
        axes.legend(frameon=False)
    for axes, (name, (rate, seconds)) in zip(panels, bursts.items()):
        at = [each.at for each in seconds]
        axes.plot(at, [each.refused / (10 * rate) for each in seconds], color="C3", label="refused, share of the burst")
        axes.plot(at, [each.workers / 10 for each in seconds], color="C0", label="workers / 10")
        axes.plot(at, [each.latency * 10 for each in seconds], color="C1", label="p50, in tenths of a second")
        axes.axvspan(BEFORE_S, BEFORE_S + BURST_S, color="0.93", zorder=0)
        axes.set(title=f"{name}: ten times the load", xlabel="seconds", ylim=(0, None))
        axes.legend(frameon=False, fontsize=8)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(to, dpi=110)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
