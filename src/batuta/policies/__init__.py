"""Named rules on what goes in, what goes between agents, and what comes out."""

from batuta.policies.finders import KINDS, finder_of
from batuta.policies.form import Form
from batuta.policies.policy import Action, Place, Policies, Policy, Screened

__all__ = ["KINDS", "Action", "Form", "Place", "Policies", "Policy", "Screened", "finder_of"]
