"""Lengths -> Plan: strategies, oversize policies, certificates, plan files."""

from padless.planning.certificate import Certificate
from padless.planning.make import plan, plan_with
from padless.planning.result import Plan
from padless.planning.spec import PlanSpec
from padless.planning.strategies import STRATEGIES
from padless.planning.validate import check_plan

__all__ = ["STRATEGIES", "Certificate", "Plan", "PlanSpec", "check_plan", "plan", "plan_with"]
