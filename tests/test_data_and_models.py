"""Partitions, the IDX reader, the data sets, and that models learn."""

import gzip

import numpy as np
import pytest
from fedcipher.data import idx, load, partition
from fedcipher.errors import ParameterError
from fedcipher.models import Learner


def test_partitions_are_disjoint_and_complete():
    labels = np.repeat(np.arange(10, dtype=np.int32), 100)
    for alpha in (None, 0.1, 10.0):
        parts = partition(labels, 7, alpha=alpha, seed=3)
        assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
        assert all(len(p) > 0 for p in parts)
        again = partition(labels, 7, alpha=alpha, seed=3)
        assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))

    def skew(alpha):
        parts = partition(labels, 7, alpha=alpha, seed=3)
        shares = [np.bincount(labels[p], minlength=10) / len(p) for p in parts]
        return np.mean([np.abs(s - 0.1).sum() for s in shares])

    assert skew(0.1) > 2 * skew(10.0) > 2 * skew(None)
    with pytest.raises(ParameterError):
        partition(labels, 2000)


def test_idx_files(tmp_path):
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    raw = bytes([0, 0, 8, 3]) + np.array([2, 3, 4], ">u4").tobytes() + values.tobytes()
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(raw))
    assert np.array_equal(idx.read(idx.find(tmp_path, "train-images")), values)
    for bad in (raw[:-1], b"", b"\x00\x00\x0d\x01" + raw[4:]):
        path.write_bytes(gzip.compress(bad))
        with pytest.raises(ParameterError):
            idx.read(path)
    with pytest.raises(ParameterError, match="--data-dir"):
        idx.find(tmp_path, "t10k-images")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "shakespeare"])
def test_real_data_sets(name, data_dir):
    data = load(name, data_dir(name))
    assert len(data.train_x) == len(data.train_y) and len(data.test_x) > 0
    assert data.train_y.max() < data.classes
    if name == "mnist":
        assert data.train_x.shape == (60000, 28, 28, 1)


PARAMETERS = {"cnn-8k": 8003, "lenet5": 61706, "cnn-1.2m": 1199882}


@pytest.mark.parametrize("model", PARAMETERS)
def test_parameter_counts(model):
    learner = Learner(model, 10, np.zeros((28, 28, 1), np.float32))
    trained = [p.size for n, p in zip(learner.names, learner.initial(), strict=True) if n.startswith("params/")]
    assert sum(trained) == PARAMETERS[model]


def test_the_cnn_learns_digits():
    data = load("digits")
    learner = Learner("cnn-8k", 10, data.train_x[0], batch=16)
    model, _ = learner.fit(learner.initial(), data.train_x, data.train_y, epochs=4, seed=0)
    confusion = learner.evaluate(model, data.test_x, data.test_y).confusion
    assert confusion.sum() == len(data.test_x)
    assert np.trace(confusion) / confusion.sum() > 0.9


def test_language_model_and_resnet_train(data_dir):
    for name, model in (("shakespeare", "gru"), ("cifar10", "resnet20")):
        data = load(name, data_dir(name))
        learner = Learner(model, data.classes, data.train_x[0], batch=32)
        initial = learner.initial()
        before = learner.evaluate(initial, data.test_x[:64], data.test_y[:64]).loss
        trained, loss = learner.fit(initial, data.train_x[:256], data.train_y[:256], epochs=2, seed=0)
        assert loss < before
