"""Lengths -> Plan: strategies, oversize policies, certificates, plan files."""

from padless.planning.certificate import Certificate
from padless.planning.make import plan, plan_with
from padless.planning.outline import Outline, outline, outline_with
from padless.planning.result import Plan
from padless.planning.spec import PlanSpec
from padless.planning.spread import Spread, spread
from padless.planning.strategies import STRATEGIES
from padless.planning.strategies.online import OnlinePacker
from padless.planning.validate import check_plan

__all__ = [
    "STRATEGIES",
    "Certificate",
    "OnlinePacker",
    "Outline",
    "Plan",
    "PlanSpec",
    "Spread",
    "check_plan",
    "outline",
    "outline_with",
    "plan",
    "plan_with",
    "spread",
]
