r"""``relp`` and ``gim``: one point, the clean prompt, with a backward pass that follows rules of its own.

Each rule is the gradient of a forward pass in which some quantities, marked [ ], are held constant.

``relp`` is relevance patching. Jafari, Eberle, Khakzar and Nanda (2025, arXiv 2508.21258) replace the gradient of
attribution patching by the coefficients of layer-wise relevance propagation::

    norm        y = (x - mean) / [sigma]                   LN-rule: Ali et al. 2022
    attention   z = sum over keys of [pattern] v           AH-rule: Ali et al. 2022
    gate        a b = (a b + [a b]) / 2                    half-rule: Arras et al. 2019, Jafari et al. 2024
    activation  f(x) = x [f(x) / x]                        identity-rule: Jafari et al. 2024
    linear      unchanged, the bias getting nothing        0-rule

The rule for norms holds for all of them: before and after attention and MLP, the last one, and those of
queries and keys. That for activations is the rule for soft caps, too. Constant patterns mean that nothing
comes back to queries and keys: all edges into <q> and <k> score 0. With ``attention=false`` they have the
gradient's. The weights with which a router adds up experts are held constant by the same rule.

``gim`` is gradient interaction modifications, which account for self-repair. Edin, Csordás, Ruotsalo, Wu, Maistro,
Huang, Christensen and Maaløe (2025, arXiv 2505.17630) find that a softmax hides what matters: where two keys carry the
same, attention moves to the other one when either is taken away, so the gradient of both is small. GIM changes the
backward pass in three ways::

    softmax     its slope is taken at the logits divided by T = 2: d p_i = s_i (d l_i - sum over j of s_j d l_j),
                s = softmax(l / T)
    norm        y = (x - mean) / [sigma]
    products    a b = (a b + [a b]) / 2, for queries times keys, patterns times values, and gated products

The last rule gives queries and keys a quarter of their gradient, since it passes two products, and values and the
two sides of a gated MLP half of theirs. The forward pass is the model's. In the authors' code the factors for gated
products came later than the others; ``gate=false`` leaves them out.
"""

from __future__ import annotations

from gradpath.attribution.methods import Options, Pair, Points, path
from gradpath.errors import UsageError
from gradpath.model.architecture import Rules


@path("relp", at_clean=lambda _: True, rules=lambda options: Rules(**options))
def relp(
    pair: Pair, *, norm: bool = True, attention: bool = True, gate: bool = True, activation: bool = True
) -> Points:
    """Relevance patching: the gradient at the clean prompt, with norms and patterns held fixed and secants for slopes.

    The options are the rules, each of which can be switched off; without any it is EAP.
    """
    yield pair.clean


def _rules(options: Options) -> Rules:
    if options["temperature"] <= 0:
        raise UsageError(f"temperature must be above 0: got {options['temperature']!r}.")
    return Rules(**options)


@path("gim", at_clean=lambda _: True, rules=_rules)
def gim(pair: Pair, *, temperature: float = 2.0, norm: bool = True, products: bool = True, gate: bool = True) -> Points:
    """Gradient interaction modifications: the gradient at the clean prompt, with a softer softmax and split products.

    ``temperature`` is that of the softmax in the backward pass; the other options are rules that can be switched
    off. Without any, and at temperature 1, it is EAP.
    """
    yield pair.clean
