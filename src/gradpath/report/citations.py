"""What to cite for a method, as BibTeX."""

from __future__ import annotations

from collections.abc import Iterable

from gradpath._version import __version__

_EAP = """@inproceedings{syed2024attribution,
  title = {Attribution Patching Outperforms Automated Circuit Discovery},
  author = {Syed, Aaquib and Rager, Can and Conmy, Arthur},
  booktitle = {Proceedings of the 7th BlackboxNLP Workshop},
  year = {2024},
  eprint = {2310.10348},
  archivePrefix = {arXiv}
}"""

_EAP_IG = """@inproceedings{hanna2024have,
  title = {Have Faith in Faithfulness: Going Beyond Circuit Overlap When Finding Model Mechanisms},
  author = {Hanna, Michael and Pezzelle, Sandro and Belinkov, Yonatan},
  booktitle = {First Conference on Language Modeling},
  year = {2024},
  eprint = {2403.17806},
  archivePrefix = {arXiv}
}"""

_EAP_GP = """@inproceedings{zhang2025eapgp,
  title = {{EAP-GP}: Mitigating Saturation Effect in Gradient-based Automated Circuit Identification},
  author = {Zhang, Lin and Dong, Wenshuo and Zhang, Zhuoran and Yang, Shu and Hu, Lijie and
            Liu, Ninghao and Zhou, Pan and Wang, Di},
  booktitle = {International Conference on Machine Learning},
  year = {2025}
}"""

_RELP = """@misc{jafari2025relp,
  title = {{RelP}: Faithful and Efficient Circuit Discovery in Language Models via Relevance Patching},
  author = {Jafari, Farnoush Rezaei and Eberle, Oliver and Khakzar, Ashkan and Nanda, Neel},
  year = {2025},
  eprint = {2508.21258},
  archivePrefix = {arXiv}
}"""

_ATP_STAR = """@misc{kramar2024atp,
  title = {{AtP*}: An efficient and scalable method for localizing {LLM} behaviour to components},
  author = {Kram{\\'a}r, J{\\'a}nos and Lieberum, Tom and Shah, Rohin and Nanda, Neel},
  year = {2024},
  eprint = {2403.00745},
  archivePrefix = {arXiv}
}"""

_SOFTWARE = """@software{gradpath,
  title = {gradpath: circuits in language models},
  version = {%s}
}"""

_BY_METHOD = {"eap": _EAP, "clean-corrupted": _EAP_IG, "eap-ig": _EAP_IG, "eap-gp": _EAP_GP}
_BY_METHOD |= {"eap-ig-activations": _EAP_IG, "relp": _RELP, "atp-star": _ATP_STAR}


def bibtex(methods: Iterable[str]) -> str:
    """The entries for some methods and for this library, each once."""
    entries = dict.fromkeys(_BY_METHOD[method] for method in methods if method in _BY_METHOD)
    return "\n\n".join([*entries, _SOFTWARE % __version__])
