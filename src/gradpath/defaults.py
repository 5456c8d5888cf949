"""The defaults of every option, in one place: the command line and the Python functions share them."""

MODEL = "smollm2"
TASK = "ioi"
METHOD = "eap-ig"
SELECTION = "refined"  # needs the model and the task; without them it is RANKING
RANKING = "top"
SPARSITY = 0.975
ABLATION = "corrupted"
EXAMPLES = 100
BATCH_SIZE = 20
SEED = 0
