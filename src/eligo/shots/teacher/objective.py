"""What a list of examples is worth, from the log-probability of the answer behind it. Section 2.

With l the mean log-probability of the answer's tokens and P = exp(l): a list is worth P (gain,
actual) or l (logprob); adding c to D scores P(D+c) - P(D) (gain), P(D+c) (actual) or
l(D+c) - l(D) (logprob, the default: P saturates).
"""

from jaxtyping import Float
from torch import Tensor

from eligo.shots.config import Objective


def worth(mean_logprob: Float[Tensor, "*lists"], objective: Objective) -> Float[Tensor, "*lists"]:
    """What beams are ranked by, always maximised."""
    return mean_logprob if objective == "logprob" else mean_logprob.exp()


def added(
    after: Float[Tensor, "*lists"], before: Float[Tensor, "*before"], objective: Objective
) -> Float[Tensor, "*lists"]:
    """The score of a step, from mean log-probabilities behind and before it."""
    if objective == "actual":
        return after.exp()
    return worth(after, objective) - worth(before, objective)
