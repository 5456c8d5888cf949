r"""``relp``: relevance patching, one point with gradients that go back by the rules of relevance propagation.

Jafari, Eberle, Khakzar and Nanda (2025, arXiv 2508.21258) replace the gradient of attribution patching by the
coefficients of layer-wise relevance propagation. As the gradient of a forward pass in which some quantities,
marked [ ], are held constant::

    norm        y = (x - mean) / [sigma]                   LN-rule: Ali et al. 2022
    attention   z = sum over keys of [pattern] v           AH-rule: Ali et al. 2022
    gate        a b = (a b + [a b]) / 2                    half-rule: Arras et al. 2019, Jafari et al. 2024
    activation  f(x) = x [f(x) / x]                        identity-rule: Jafari et al. 2024
    linear      unchanged, the bias getting nothing        0-rule

The rule for norms holds for all of them: before and after attention and MLP, the last one, and those of
queries and keys. That for activations is the rule for soft caps, too. Constant patterns mean that nothing
comes back to queries and keys: all edges into <q> and <k> score 0. With ``attention=false`` they have the
gradient's. The weights with which a router adds up experts are held constant by the same rule.
"""

from __future__ import annotations

from gradpath.attribution.methods import Pair, Points, path
from gradpath.model.architecture import Rules


@path("relp", at_clean=lambda _: True, rules=lambda options: Rules(**options))
def relp(
    pair: Pair, *, norm: bool = True, attention: bool = True, gate: bool = True, activation: bool = True
) -> Points:
    """Relevance patching: the gradient at the clean prompt, with norms and patterns held fixed and secants for slopes.

    The options are the rules, each of which can be switched off; without any it is EAP.
    """
    yield pair.clean
