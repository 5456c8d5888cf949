"""A circuit: a set of a model's edges, read from and written to files, and compared with others."""

from gradpath.circuit.circuit import Circuit as Circuit
from gradpath.circuit.circuit import circuit_by_names as circuit_by_names
from gradpath.circuit.circuit import is_hub_address as is_hub_address
from gradpath.circuit.circuit import load_circuit as load_circuit
from gradpath.circuit.comparison import Comparison as Comparison
