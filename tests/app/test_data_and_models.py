"""Partitions, the IDX reader, the data sets, and that models learn."""

import gzip
import json

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


def idx_file(path, values):
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def test_fashion_mnist_is_read_from_its_files(tmp_path, rng):
    images = rng.integers(0, 256, (5, 28, 28))
    for stem, count in (("train", 5), ("t10k", 2)):
        idx_file(tmp_path / f"{stem}-images-idx3-ubyte.gz", images[:count])
        idx_file(tmp_path / f"{stem}-labels-idx1-ubyte.gz", np.array([9, 0, 3, 1, 2][:count]))
    data = load("fashion-mnist", str(tmp_path))
    assert data.train_x.shape == (5, 28, 28, 1) and data.test_y.tolist() == [9, 0] and data.classes == 10
    assert np.array_equal(np.rint(data.train_x[..., 0] * 255), images)
    idx_file(tmp_path / "train-labels-idx1-ubyte.gz", np.array([9, 0, 10, 1, 2]))
    load.cache_clear()
    with pytest.raises(ParameterError, match="labels from 0 to 10 in the training labels"):
        load("fashion-mnist", str(tmp_path))


def test_cifar100_is_read_from_its_binary_version(tmp_path, rng):
    planes = rng.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    labels = np.array([[1, 99], [2, 0], [19, 42]], np.uint8)
    raw = np.concatenate([labels, planes.reshape(3, -1)], axis=1).tobytes()
    (tmp_path / "train.bin").write_bytes(raw)
    (tmp_path / "test.bin").write_bytes(raw[: len(raw) // 3])
    data = load("cifar100", str(tmp_path))
    assert (data.train_x.shape, data.test_x.shape, data.classes) == ((3, 32, 32, 3), (1, 32, 32, 3), 100)
    assert data.train_y.tolist() == [99, 0, 42]
    # Red is the first plane.
    assert np.array_equal(np.rint(data.train_x[1, :, :, 0] * 255), planes[1, 0])
    for name, content, why in (
        ("train.bin", raw[:-1], "not whole records"),
        ("train.bin", b"", "not whole records"),
        ("train.bin", bytes([0, 100]) + raw[2:], "labels from 0 to 100 in the training labels"),
    ):
        (tmp_path / name).write_bytes(content)
        load.cache_clear()
        with pytest.raises(ParameterError, match=why):
            load("cifar100", str(tmp_path))
    (tmp_path / "test.bin").unlink()
    (tmp_path / "train.bin").write_bytes(raw)
    with pytest.raises(ParameterError, match=r"no test\.bin"):
        load("cifar100", str(tmp_path))


def leaf(folder, name, writers):
    folder.mkdir(exist_ok=True)
    content = {"users": list(writers), "num_samples": [len(w["y"]) for w in writers.values()], "user_data": writers}
    (folder / name).write_text(json.dumps(content))


def test_femnist_is_read_as_leaf_has_it(tmp_path):
    def writer(*labels):
        return {"x": [[label / 61] * 784 for label in labels], "y": list(labels)}

    leaf(tmp_path / "train", "all_data_0.json", {"f0001": writer(61, 3), "f0002": writer(0)})
    leaf(tmp_path / "train", "all_data_1.json", {"f0003": writer(10)})
    leaf(tmp_path / "test", "all_data_0.json", {"f0001": writer(61)})
    data = load("femnist", str(tmp_path))
    assert (data.train_x.shape, data.test_x.shape, data.classes) == ((4, 28, 28, 1), (1, 28, 28, 1), 62)
    assert data.train_y.tolist() == [61, 3, 0, 10]
    assert np.allclose(data.train_x[:, 5, 5, 0], data.train_y / 61)
    for wrong, why in (
        ({"f0001": {"x": [[0.0] * 783], "y": [1]}}, "not a file of LEAF's"),
        ({"f0001": {"x": [[2.0] * 784], "y": [1]}}, "below 0 or above 1"),
        ({"f0001": {"x": [[0.5] * 784], "y": [62]}}, "labels from 62 to 62"),
        ({"f0001": {"y": [62]}}, "not a file of LEAF's"),
        ({}, "has no writer"),
    ):
        leaf(tmp_path / "test", "all_data_0.json", wrong)
        load.cache_clear()
        with pytest.raises(ParameterError, match=why):
            load("femnist", str(tmp_path))
    with pytest.raises(ParameterError, match="--data-dir"):
        load("femnist", str(tmp_path / "test"))


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


def test_a_variance_below_zero_is_none():
    """Noise for privacy took one there in a run of five, and the loss was no number."""
    data = load("digits")
    learner = Learner("cnn-8k", 10, data.train_x[0], batch=16)
    model = [
        np.full_like(p, -1) if n.endswith("/var") else p for n, p in zip(learner.names, learner.initial(), strict=True)
    ]
    assert any(n.endswith("/var") for n in learner.names)
    assert np.isfinite(learner.evaluate(model, data.test_x, data.test_y).loss)
    trained, loss = learner.fit(model, data.train_x[:64], data.train_y[:64], epochs=1, seed=0)
    assert np.isfinite(loss) and all(np.isfinite(p).all() for p in trained)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("shakespeare", "gru"),
        pytest.param("shakespeare", "gru-0.66m", marks=pytest.mark.long),
        pytest.param("cifar10", "resnet20", marks=pytest.mark.long),
    ],
)
def test_language_model_and_resnet_train(data_dir, name, model):
    data = load(name, data_dir(name))
    learner = Learner(model, data.classes, data.train_x[0], batch=32)
    initial = learner.initial()
    before = learner.evaluate(initial, data.test_x[:64], data.test_y[:64]).loss
    trained, loss = learner.fit(initial, data.train_x[:256], data.train_y[:256], epochs=2, seed=0)
    assert loss < before
