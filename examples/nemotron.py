"""Nemotron and Minitron (``nemotron``): a model family in one file.

gradpath check --plugin nemotron.py --model nvidia/Minitron-4B-Base
"""

from gradpath.model.architecture import ACTIVATIONS
from gradpath.model.families import Checkpoint, Names, Transformer, family, read_architecture, read_model

# The names of the weights are Llama's, but for those given here. The weights of norms are gains less one.
NAMES = Names(mlp_in=["mlp.up_proj"], gain=lambda weight: weight + 1)

# The square of ReLU. Known activations are GELU, ReLU and SiLU.
ACTIVATIONS["relu2"] = lambda x: x.relu().square()


@family("nemotron", "Nemotron-4, Minitron", supports="LayerNorm, partial rotary, squared ReLU")
def from_nemotron(source: Checkpoint) -> Transformer:
    arch = read_architecture(
        source,
        norm="layer",  # LayerNorm, not RMSNorm
        eps=source.config.norm_eps,  # by default it is layer_norm_eps or layer_norm_epsilon
        activation=source.only("hidden_act", ["relu2"]),  # any other value is refused by name
        gated=False,  # the MLP has no gate
    )
    return read_model(source, arch, names=NAMES)  # with the rotations that transformers has computed
