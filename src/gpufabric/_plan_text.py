"""What `print(plan)` shows a person who will pay for it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpufabric._display import one_line

if TYPE_CHECKING:
    from gpufabric.plan import LaunchPlan

__all__ = ["plan_lines"]


def plan_lines(plan: "LaunchPlan") -> Iterator[str]:
    """Gives the lines of `print(plan)`, each still with whatever its values hold."""
    offer = plan.offer
    yield f"{plan.name}: {offer}"
    if plan.lower_tier:
        asked = max(option.network_tier for option in plan.task.resources.alternatives())
        yield f"  LOWER TIER: {asked.value} was asked, {offer.tier.value} is what there is"
    yield f"  platform {offer.platform}" + (f", pool {offer.pool}" if offer.pool else "")
    if offer.usd_hour is not None:
        yield (
            f"  price {offer.usd_hour:.2f} USD/h a node, {offer.usd_hour_total:.2f} USD/h in all"
            f" ({offer.price_from or offer.billing})"
        )
    if plan.gang_timeout_s is not None:
        yield f"  limit: rolled back where not whole within {plan.gang_timeout_s:g} s"
    for title, words in (("limit", offer.limits), ("warning", (*offer.warnings, *plan.warnings))):
        for word in words:
            yield f"  {title}: {word}"
    if plan.network:
        yield "network:"
        for item in plan.network:
            yield f"  {item.kind} {item.name}: {item.value}"
            yield f"      {item.why}" + (f" [{item.source}]" if item.source else "")
    if plan.env:
        yield "environment:"
        for var in plan.env:
            won = f" (yours; the plan had {var.overridden})" if var.overridden is not None else ""
            yield f"  {var.name}={one_line(var.value, 500)}{won}"
            yield f"      {var.why}" + (f" [{var.source}]" if var.source else "")
    if plan.task.secrets:
        yield "secrets: " + ", ".join(sorted(plan.task.secrets))
    yield "steps:"
    for i, step in enumerate(plan.steps, 1):
        yield f"  {i}. {step}" + ("" if step.owned else " (not ours: stays)")
