"""The paper's tables and figures, each one a function of a model: experiments that stop and resume.

An experiment is a list of jobs and an outcome. The jobs fill a store of cells, one small file per finished
measurement (``store``, ``grid``); the outcome reads them back and makes a table and figures of them
(``output``). So a run that was killed goes on where it stopped, and experiments share what they have in
common: the scores of a method are computed once, whoever asks first.

    registry    the experiments by name          bench       a model, a request and a store
    methods     'eap-gp+stride=matched'          grid        jobs, and how they are run
    store       finished cells on disk           output      CSV, Markdown, JSON, figures
    published   the paper's own tables           figures     how plots look

One module for each experiment: baselines, faithfulness, steps, runtime, manual, saturation, circuit, exact.
The library itself never imports this package.
"""
