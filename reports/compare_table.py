"""A comparison for people, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from paceline.sim.records.comparison import Comparison

_WORDS = {"time_to_target_s": "time to target", "wall_clock_s": "wall clock", "iteration_time_s": "one step"}


def render(found: Comparison) -> RenderableType:
    """Predicted beside measured, whether both computed the same, and a verdict."""
    table = Table("scheme", "seed", "", "predicted", "measured", "error")
    for cell in found["cells"]:
        values = (f"{value:.3f} s" for value in (cell["predicted"], cell["measured"]))
        table.add_row(
            cell["label"], str(cell["seed"]), _WORDS[cell["metric"]], *values, f"{cell['error_pct']:+.2f} %"
        )
    lines = [f"{each['label']}, seed {each['seed']}: {each['says']}" for each in found["trajectories"]]
    return Group(table, *lines, *found["warnings"], verdict(found))


def verdict(found: Comparison) -> str:
    """One line: is the prediction to be trusted here?"""
    decision = found["decision"]
    if found["mean_abs_error_pct"] is None:
        return "There is nothing to compare."
    errors = (
        f"{found['mean_abs_error_pct']:.2f} % off on average, {found['max_abs_error_pct']:.2f} % at worst"
    )
    predicted, measured = decision["winner_predicted"], decision["winner_measured"]
    if predicted is None or measured is None:
        choice = "no scheme got to the target on both sides"
    elif predicted == measured:
        choice = f"the winner, {measured}, was predicted"
    else:
        regret = "" if decision["regret_pct"] is None else f", which costs {decision['regret_pct']:.1f} %"
        choice = f"{predicted} was predicted, {measured} won{regret}"
    return f"Predicted times are {errors}; {choice}."
