"""What holds of every scheme of the product holds of the baselines: the product's own tests, with other names."""

import fedcipher
import numpy as np
import pytest
import test_arguments as of_arguments
import test_attacks_identity as of_attacks_identity
import test_attacks_sets as of_attacks_sets
import test_dp as of_dp
import test_lanes as of_lanes
import test_schemes as of_schemes
import test_weights as of_weights
import test_whole_numbers as of_whole_numbers
from baseline_lists import baselines, quick
from engine_harness import deployment
from fedcipher import Codec, errors
from fedcipher.schemes import scheme_class, scheme_names
from fedcipher_research import cli
from fedcipher_research.baselines import BASELINES
from test_arguments import cohorts, made
from test_dp import told
from test_keys_and_cli import test_keygen_leaves_bits_to_the_run_where_ranges_follow_the_updates as keygen_of_bits
from test_train import trained

__all__ = ["cohorts", "made", "told", "trained"]

NAMES, FAST = baselines(), baselines(quick)
FEW = {"tfhe": 20}


def test_they_are_schemes_here_and_promise_nothing_that_they_have_not():
    assert scheme_names()[-len(BASELINES) :] == [cls.name for cls in BASELINES]
    assert not any(cls.info.widths or cls.info.committee for cls in BASELINES)


@pytest.mark.parametrize("name", NAMES)
def test_they_have_neither_a_committee_nor_workers_nor_bits_of_a_run(name):
    of_schemes.test_what_one_scheme_needs_is_an_object_or_nothing(name)
    with pytest.raises(errors.ParameterError, match='bits="auto" needs lanes'):
        fedcipher.scheme(name, clients=3, codec=Codec(bits="auto"))
    assert scheme_class(name).info.hides


def test_memories_and_shares():
    of_schemes.test_a_sum_counts_in_one_memory("paillier")
    of_schemes.test_a_share_of_the_clients_is_a_count_once_the_scheme_is_made("paillier")


@pytest.mark.parametrize("number", [np.int64(4), np.uint8(4)])
def test_cohorts(number):
    of_arguments.test_a_cohort_is_counted_by_any_whole_number("paillier", number)


@pytest.mark.parametrize("buffer", of_arguments.BUFFERS)
def test_buffers(cohorts, buffer):
    of_arguments.test_a_frame_is_any_buffer_of_bytes(cohorts, "paillier", buffer)


@pytest.mark.parametrize("odd", [None, "frame", [1, 2]])
def test_frames(cohorts, odd):
    of_arguments.test_what_holds_no_bytes_is_no_frame(cohorts, "paillier", odd)


@pytest.mark.parametrize("layout", of_arguments.LAYOUTS)
def test_arrays(cohorts, layout):
    of_arguments.test_an_array_is_its_values_however_they_lie(cohorts, "paillier", np.float64, layout)


def test_specs(cohorts):
    of_arguments.test_a_scheme_travels_as_its_spec(cohorts, "paillier")


@pytest.mark.parametrize("value", [0, "", {}, False], ids=repr)
@pytest.mark.parametrize("name", FAST)
def test_codecs(name, value):
    of_arguments.test_nothing_but_none_stands_for_the_default_codec(name, value)


@pytest.mark.parametrize("name", FAST)
def test_lanes_alone(name):
    of_lanes.test_frames_of_lanes_alone_are_exact_in_other_schemes(name)


@pytest.mark.parametrize("name", FAST)
def test_noise(name):
    of_dp.test_the_opened_sum_carries_the_noise_of_all_clients(name)


def test_noise_beyond_the_range(told, monkeypatch, rng):
    of_dp.test_sums_are_exact_and_nothing_wraps_where_the_range_is_too_small("bfv-lib", told, monkeypatch, rng)


@pytest.mark.parametrize("name", FAST)
def test_privacy(name, tmp_path):
    of_dp.test_weights_do_not_go_with_privacy(name)
    of_dp.test_no_process_and_no_restart_goes_beyond_the_budget(tmp_path, name)


@pytest.mark.parametrize("bits", [6, 12])
@pytest.mark.parametrize("examples", [[10] * 3, [60_000, 60, 60]])
def test_counters(tmp_path, bits, examples):
    of_whole_numbers.test_sums_of_counters_are_exact(tmp_path, "paillier", bits, examples)


WEIGHED = baselines(long=lambda variant: not quick(variant))


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_of_uneven_clients(tmp_path, name):
    values = 10 if name == "tfhe" else of_weights.UNBIASED
    of_weights.test_one_large_client_and_nine_small_ones_give_fedavgs_mean(tmp_path, name, values)


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_of_many_clients(name, monkeypatch):
    monkeypatch.setitem(of_weights.FEW, name, FEW.get(name, 100))
    if name == "tfhe":
        monkeypatch.setattr(of_weights.opened_sum, "__defaults__", (10,))
    of_weights.test_many_small_clients_with_keys_for_a_large_one_give_their_mean_in_every_scheme(name)


def test_bits_of_keygen(tmp_path):
    keygen_of_bits(tmp_path, ["--scheme", "paillier"], 6)


def test_a_parameter_that_is_no_number(tmp_path, capsys):
    line = ["keygen", "--clients", "3", "--equal", "--out", str(tmp_path / "new"), "--scheme", "paillier"]
    assert cli.main([*line, "--set", "key_bits=1e999"]) == 2
    assert "key_bits" in capsys.readouterr().err and not (tmp_path / "new").exists()


@pytest.mark.long
def test_training_digits_end_to_end(trained):
    from test_train import test_training_digits_end_to_end

    test_training_digits_end_to_end(trained, ("--scheme", "paillier"))


@pytest.mark.parametrize("name", FAST)
def test_no_engine_takes_one(name, tmp_path):
    made = fedcipher.scheme(name, clients=3, codec=Codec(bits=12, clip=1.0))
    with pytest.raises(errors.EngineError, match=f'no kernel for "{name}"'), deployment(made, 3, tmp_path):
        pass


# --- attacks ------------------------------------------------------------------------------------


@pytest.fixture
def thief(tmp_path, rng, monkeypatch):
    codec = Codec(bits=10, clip=2.0, target="weights")
    federation = of_attacks_identity.Federation(tmp_path, "paillier", rng, codec=codec)
    return of_attacks_identity.Thief(federation, monkeypatch, tmp_path)


def test_attack_18_of_a_baseline(thief, caplog):
    of_attacks_identity.test_attack_18_who_sends_anothers_number_first_is_not_that_client(thief, caplog)


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 0, 0), (3, 4, 0)], ids=str)
def test_attack_18_one_key_file_of_a_baseline_on_three_nodes(thief, numbers):
    of_attacks_identity.test_attack_18_one_key_file_on_three_nodes_fills_no_sum_of_three(thief, numbers)


def test_attack_18_a_refused_frame_of_a_baseline(thief):
    of_attacks_identity.test_attack_18_a_frame_that_is_refused_binds_and_frees_nobody(thief)


@pytest.fixture
def world():
    return of_attacks_sets.World("paillier")


def test_attack_32_of_a_baseline(world):
    of_attacks_sets.test_attack_32_sets_that_set_few_clients_apart_are_not_opened(world)


def test_attack_32_of_a_baseline_without_a_memory(world):
    of_attacks_sets.test_attack_32_sets_of_one_round_without_a_memory_stay_one(world)


def test_attack_33_of_a_baseline(world):
    of_attacks_sets.test_attack_33_sums_over_changing_sets_give_no_client(world)
