r"""``gim``: gradient interaction modifications, one point with gradients that account for self-repair.

Edin, Csordás, Ruotsalo, Wu, Maistro, Huang, Christensen and Maaløe (2025, arXiv 2505.17630) find that a softmax
hides what matters: where two keys carry the same, attention moves to the other one when either is taken away, so
the gradient of both is small. GIM changes the backward pass in three ways, quantities marked [ ] being constants::

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
