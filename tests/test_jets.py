"""Jet images: the sample, and files in the layout of the original set."""

import numpy as np
import pytest

from rtbm import FileError, InvalidInputError, datasets

h5py = pytest.importorskip("h5py")

jets = datasets.jets


# The sample


def test_the_sample_is_what_it_says():
    everything, train, test = (jets.load(part) for part in ("all", "train", "test"))
    assert (len(train.images), len(test.images)) == (5000, 2500)
    assert np.array_equal(np.concatenate([train.images, test.images]), everything.images)
    assert everything.labels.sum() == 3750
    assert everything.images.min() == 0
    assert train.pixels.shape == (5000, 1024)
    total = everything.images.sum(axis=(1, 2))
    assert np.quantile(total, 0.01) > 290
    assert np.quantile(total, 0.99) < 450
    with pytest.raises(InvalidInputError, match="part must be one of"):
        jets.load("validation")


def test_the_mass_of_w_bosons_shows_in_the_sample():
    everything = jets.load()
    place = (np.arange(32) - 15.5) * 0.1
    spread = everything.images @ place**2
    second = (spread.sum(axis=1) + (everything.images.transpose(0, 2, 1) @ place**2).sum(axis=1)) / 1.0
    mass = np.sqrt(second * everything.images.sum(axis=(1, 2)))
    w, other = (mass[everything.labels == label] for label in (1, 0))
    assert 70 < np.median(w) < 95
    assert np.subtract(*np.quantile(w, (0.75, 0.25))) < 25
    assert np.median(other) < 55


def test_images_are_centred_turned_and_mirrored():
    everything = jets.load().images
    total = everything.sum(axis=(1, 2))
    place = (np.arange(32) - 15.5) * 0.1
    for axis in (1, 2):
        centroid = everything.sum(axis=3 - axis) @ place / total
        assert np.abs(centroid).max() < 0.1  # up to the size of a pixel
    left, right = everything[:, :, :16].sum(axis=(1, 2)), everything[:, :, 16:].sum(axis=(1, 2))
    assert (right >= left - 1e-3 * total).mean() > 0.98
    assert everything[:, 16:].sum() > everything[:, :16].sum()


# Files of the original set


def write(path, features, targets):
    with h5py.File(path, "w") as file:
        file["features"], file["targets"] = features, targets
    return path


def test_files_of_the_original_layout(tmp_path):
    sample = jets.load("test")
    path = write(tmp_path / "j.h5", sample.images[:20, None].astype(np.float32), sample.labels[:20, None].astype("i1"))
    found = jets.read_hdf5(path)
    assert np.array_equal(found.images, sample.images[:20])
    assert np.array_equal(found.labels, sample.labels[:20])
    part = jets.read_hdf5(path, 5, 9)
    assert np.array_equal(part.images, sample.images[5:9])


def test_files_of_other_layouts_are_refused(tmp_path):
    good = np.zeros((3, 1, 32, 32)), np.zeros((3, 1))
    with pytest.raises(FileError, match="no such file"):
        jets.read_hdf5(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("no data")
    with pytest.raises(FileError, match="not an HDF5 file"):
        jets.read_hdf5(tmp_path / "text.h5")
    with pytest.raises(FileError, match=r"expected numbers features \(N, 1, 32, 32\)"):
        jets.read_hdf5(write(tmp_path / "a.h5", good[0][:, 0], good[1]))
    with pytest.raises(FileError, match="expected numbers features"):
        jets.read_hdf5(write(tmp_path / "b.h5", good[0], good[1][:2]))
    with pytest.raises(FileError, match="targets 0 or 1"):
        jets.read_hdf5(write(tmp_path / "c.h5", good[0], good[1] + 2))
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["images"] = good[0]
        file["features"] = 3.0
    with pytest.raises(FileError, match="expected numbers features"):
        jets.read_hdf5(tmp_path / "d.h5")
    with pytest.raises(FileError, match="expected numbers features"):
        jets.read_hdf5(write(tmp_path / "e.h5", np.full((3, 1, 32, 32), b"a"), good[1]))
    with pytest.raises(FileError, match="expected numbers features"):
        jets.read_hdf5(write(tmp_path / "f.h5", good[0], np.zeros((9, 1))), 0, 2)
    with pytest.raises(FileError, match="not negative"):
        jets.read_hdf5(write(tmp_path / "g.h5", good[0] - 1, good[1]))
    with pytest.raises(InvalidInputError, match="start must be below the number of images, 3, got 3"):
        jets.read_hdf5(write(tmp_path / "h.h5", *good), 3)
    with pytest.raises(FileError, match="a folder"):
        jets.read_hdf5(tmp_path)
    with pytest.raises(InvalidInputError, match="path must be"):
        jets.read_hdf5(None)
