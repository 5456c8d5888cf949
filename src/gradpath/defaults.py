"""The defaults of every option, and the values that some can have: the command line and Python share them.

Nothing is imported here, so that ``gradpath --help`` is quick.
"""

MODEL = "smollm2"
TASK = "ioi"
METHOD = "eap-ig"
PAPER_GP = "eap-gp+stride=unit+outputs=all"  # EAP-GP as in the paper's equations, whose G is the output of the model
PAPER_METHODS = f"eap,eap-ig,{PAPER_GP}"  # of reproduce
PAPER_SELECTIONS = "top,greedy"
PAPER_STEPS = "3-20"
GRID = "paper"  # of sparsities
MIB_GRID = "mib"
MIB_RANKINGS = ("top", "signed")  # the selections that MIB's areas are defined for
SELECTION = "refined"  # needs the model and the task; without them it is RANKING
RANKING = "top"
RESAMPLES = 6  # of the attribution examples: a selection that is a consensus runs on each of them
FAITHFULNESS = 0.85  # of the circuit that find looks for, where no size is given
SPARSITY = 0.975  # where sizes are not searched: curves, selections that are not nested
ABLATION = "corrupted"
ABLATIONS = {
    ABLATION: "The output of the node on the corrupted prompt.",
    "zero": "Zero.",
    "mean": "The mean output over all positions of the clean prompts of a data set.",
    "mean-positional": "The mean output at each position over the clean prompts of a data set.",
}
TASK_SPLITS = ("train", "test", "all")  # the order matters: it is part of the draw of examples
REWORDED = "reworded"  # the split of other templates, which some tasks have
EXAMPLES = 100
SEED = 0
PROMPTS_AT_ONCE = 20  # where the model is only run, and no option says how many
