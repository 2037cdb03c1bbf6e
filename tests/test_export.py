"""Files give back exactly what was written, to us and to plain xarray and pandas."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.exceptions import StoreError, UsageError
from rankscope.store.attributes import decode_attrs, encode_attrs
from rankscope.store.files import FORMATS, check_target, export, file_format, load

SUFFIXES = sorted(FORMATS)
F10_ATTRS: dict[str, Any] = {
    "flag": True,
    "none": None,
    "npflag": np.bool_(True),
    "cfg": {"a": 1},
    "l": ["a", "b"],
    "mix": [1, "a"],
}
PLAIN_ATTRS = {"seed": 7, "big": 2**40, "rate": 1 / 3, "text": "naïve\n", "empty": ""}
F33_VALUES = [0.1, 1 / 3, 5e-324, np.nan, np.inf, -np.inf, 1.18e-38, -0.0]
F33_WORDS = ["NA", "null", "nan", "a,b", '"', "\n", "", "None", "#", "\r\n", " x ", "漢", "NaN"]


def run_like(n_samples: int = 3, seed: int = 0) -> xr.Dataset:
    """A small dataset with the dims, types and coordinates of a run."""
    dims = ("model", "corpus", "sample", "layer", "head", "index")
    rng = np.random.default_rng(seed)
    curve = rng.random((1, 1, n_samples, 2, 2, 8))
    curve[0, 0, 1, 1, 0] = np.nan
    curve[0, 0, 0, 0, 0] = F33_VALUES
    codes = rng.integers(-1, 7, curve.shape[:-1]).astype(np.int8)
    status = (dims[:-1], codes, {"flag_values": np.arange(-1, 7, dtype=np.int8), "note": "codes"})
    return xr.Dataset(
        {
            "singular_value": (dims, curve, {"long_name": "σ", "units": "1"}),
            "status": status,
            "n_tokens": (dims[:3], np.full((1, 1, n_samples), 8, dtype=np.int32)),
            "usable": (("head", "layer"), np.array([[True, False], [False, False]])),
            "float32": ("layer", np.array([0.1, 1e-45], dtype=np.float32)),
        },
        {
            "model": ["random:roberta-base"],
            "corpus": ["NA"],
            "sample": np.arange(n_samples),
            "layer": [0, 5],
            "head": [0, 1],
            "index": np.arange(1, 9),
            "text_id": ("sample", np.arange(n_samples) + 2**60),
            "attention": ("layer", ["global", "local"]),
            "device": "cpu",
        },
        F10_ATTRS | PLAIN_ATTRS | {"recipe_json": '{"length": 512}', "rates": (0.1, np.inf)},
    )


def means_like() -> xr.Dataset:
    """No sample, two families of dims that share no row, texts of the kind that CSV loses."""
    return xr.Dataset(
        {
            "mean": (("layer", "index"), np.arange(6.0).reshape(2, 3)),
            "by_word": (("layer", "word"), np.ones((2, len(F33_WORDS)), dtype=np.uint16)),
            "name": (("word",), np.array(F33_WORDS, dtype=object)),
            "total": ((), np.uint64(2**64 - 1)),
            "nothing": (("void", "layer"), np.zeros((0, 2))),
        },
        {"layer": [3, 1], "word": F33_WORDS},
        {"_FillValue": 1, "rankscope_schema": "mine", "größe": 2, "t": {"x": (1, None)}},
    )


def assert_same(read: xr.Dataset, written: xr.Dataset) -> None:
    """Identical, and of the same types, and bit for bit."""
    xr.testing.assert_identical(read, written)
    assert list(read.attrs) == list(written.attrs)
    for name, variable in written.variables.items():
        assert read[name].dtype == variable.dtype, name
        assert read[name].dims == variable.dims, name
        if variable.dtype.kind in "biuf":
            assert read[name].values.tobytes() == variable.values.tobytes(), name


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("make", [run_like, means_like, xr.Dataset])
def test_read_back_identical(tmp_path: Path, suffix: str, lazy: bool, make: Any) -> None:
    path = export(make(), tmp_path / "new" / f"run.{suffix}")
    with load(path, lazy=lazy) as read:
        assert_same(read, make())
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_loaded_file_can_be_overwritten_and_written_again(tmp_path: Path, suffix: str) -> None:
    path = export(run_like(), tmp_path / f"run.{suffix}")
    read = load(path, lazy=True)
    export(read, path, overwrite=True)
    read.close()
    assert_same(load(path), run_like())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", ["<U9", "object", "StringDType", "pandas"])
def test_text_types(tmp_path: Path, suffix: str, dtype: str) -> None:
    words: Any = np.array(F33_WORDS, dtype=np.dtypes.StringDType() if dtype[0] == "S" else object)
    if dtype == "pandas":
        words = pd.array(F33_WORDS, dtype="string")
    elif dtype == "<U9":
        words = words.astype("<U9")
    written = xr.Dataset({"v": ("x", words)})
    read = load(export(written, tmp_path / f"a.{suffix}"))
    assert read["v"].values.tolist() == F33_WORDS
    assert read["v"].dtype == ("object" if dtype == "pandas" else written["v"].dtype)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    numbers=st.lists(st.floats(width=64), min_size=1, max_size=5),
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    attr=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
        max_leaves=5,
    ),
    key=st.text(min_size=1),
)
def test_anything_reads_back(
    tmp_path: Path, suffix: str, numbers: list[float], text: str, attr: Any, key: str
) -> None:
    written = xr.Dataset(
        {"v": ("x", np.array(numbers)), "w": ((), np.array(text, dtype=object))}, attrs={key: attr}
    )
    read = load(export(written, tmp_path / f"h.{suffix}", overwrite=True))
    xr.testing.assert_identical(read, written)
    np.testing.assert_array_equal(
        np.signbit(read.v[~np.isnan(read.v)]), np.signbit(written.v[~np.isnan(written.v)])
    )


def test_f10_attributes_are_equal_under_each_engine(tmp_path: Path) -> None:
    encoded = encode_attrs(F10_ATTRS | {"seed": 3})
    assert encoded["cfg_json"] == '{"a": 1}'
    assert encoded["seed"] == 3
    for engine in ("h5netcdf", "netcdf4", "scipy"):
        path = tmp_path / f"{engine}.nc"
        xr.Dataset(attrs=encoded).to_netcdf(path, engine=engine)  # type: ignore[call-overload]
        with xr.open_dataset(path, engine=engine) as read:
            assert decode_attrs(read.attrs) == F10_ATTRS | {"seed": 3}
    xr.Dataset(attrs=encoded).to_zarr(tmp_path / "a.zarr", consolidated=False)
    with xr.open_zarr(tmp_path / "a.zarr", consolidated=False) as read:
        assert decode_attrs(read.attrs) == F10_ATTRS | {"seed": 3}


def test_attributes_whose_names_clash_stay_apart() -> None:
    attrs = {"cfg": {"a": 1}, "cfg_json": "{}", "rankscope_attrs_json": "x", "1 é": 2, "a/b": 1}
    encoded = encode_attrs(attrs)
    assert encoded["cfg_json"] == "{}"
    assert decode_attrs(encoded) == attrs
    assert decode_attrs(decode_attrs(encode_attrs(encoded))) == attrs


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_f10_plain_xarray_reads_our_netcdf(tmp_path: Path, engine: str) -> None:
    written = run_like()
    with xr.open_dataset(export(written, tmp_path / "a.nc"), engine=engine) as read:  # type: ignore[arg-type]
        assert PLAIN_ATTRS.items() <= read.attrs.items()
        for name in written.variables:
            xr.testing.assert_equal(read[name].variable, written[name].variable)
        assert {*read.coords} == {*written.coords}
        assert read["usable"].dtype == bool
        assert read["status"].attrs["flag_values"].tolist() == list(range(-1, 7))
        assert read["status"].attrs["flag_values"].dtype == np.int8


def test_plain_xarray_reads_our_zarr(tmp_path: Path) -> None:
    written = run_like()
    with xr.open_zarr(export(written, tmp_path / "a.zarr"), consolidated=False) as read:
        xr.testing.assert_equal(read, written)
        assert read["status"].dtype == np.int8


def test_f33_csv_is_tidy_quoted_and_exact(tmp_path: Path) -> None:
    path = export(run_like(), tmp_path / "a.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# rankscope-csv 1 {")
    assert lines[0].count('"') % 2 == 0
    assert '"random:roberta-base","NA",0,0,0,4,' in lines[5]
    assert ",NaN," in lines[5]
    exactly = {"singular_value": str}
    frame = pd.read_csv(path, skiprows=1, keep_default_na=False, dtype=exactly)
    assert len(frame) == 3 * 2 * 2 * 8
    assert frame["corpus"].unique().tolist() == ["NA"]
    exact = run_like()["singular_value"].values.ravel()
    np.testing.assert_array_equal(frame["singular_value"].map(float).to_numpy(), exact)
    ours = means_like()
    quotes = ours.assign_attrs({'"': '"\\"', "\\": "\\"})
    assert_same(load(export(quotes, tmp_path / "b.csv")), quotes)
    frame = pd.read_csv(tmp_path / "b.csv", skiprows=1, keep_default_na=False)
    assert set(F33_WORDS) == set(frame["name"])


def test_parquet_is_read_by_pandas_one_group_a_sample(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    dims = ("sample", "layer", "index")
    written = xr.Dataset({"v": (dims, np.random.default_rng(0).random((3, 160, 512)))})
    path = export(written, tmp_path / "a.parquet")
    frame = pd.read_parquet(path)
    np.testing.assert_array_equal(frame["v"].to_numpy(), written["v"].values.ravel())
    assert [*frame.columns] == ["sample", "layer", "index", "v"]
    assert pq.read_metadata(path).num_row_groups == 3


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.ones(2, dtype=np.float16), "float16"),
        (np.ones(2, dtype=complex), "complex128"),
        (np.array(["2001-01-01"] * 2, dtype="datetime64[ns]"), "datetime64"),
        (np.array(["a", None], dtype=object), "among its texts"),
        (np.array(["a", "x\0y"]), "NUL"),
        (np.array(["a", "\ud800"]), "surrogate"),
    ],
)
def test_f10_what_files_cannot_keep_is_refused_before_writing(
    tmp_path: Path, suffix: str, values: np.ndarray, words: str
) -> None:
    with pytest.raises(StoreError, match=words):
        export(xr.Dataset({"v": ("x", values)}), tmp_path / f"a.{suffix}")
    with pytest.raises(StoreError, match="attribute 'bad' holds a set"):
        export(xr.Dataset(attrs={"bad": {1, 2}}), tmp_path / f"a.{suffix}")
    with pytest.raises(StoreError, match="attribute name 1 is not text"):
        export(xr.Dataset({"v": ((), 1.0, {1: 2})}), tmp_path / f"a.{suffix}")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["a/b", "", "..", "__x", " x"])
def test_names_that_no_file_can_keep_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="cannot be the name"):
        export(xr.Dataset({name: ("x", [1.0])}), tmp_path / "a.csv")


def test_check_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"'run\.txt'") as error:
        check_target("run.txt")
    assert error.value.remedy == "use .nc, .zarr, .csv, .parquet"
    assert file_format("x.dat", "csv") == "csv"
    path = export(run_like(), tmp_path / "a.nc")
    with pytest.raises(StoreError, match="exists"):
        check_target(path)
    with pytest.raises(StoreError, match="exists"):
        export(run_like(), path)
    assert check_target(path, overwrite=True, attrs=F10_ATTRS) == "nc"
    with pytest.raises(StoreError, match="is not a folder"):
        check_target(path / "b.nc")
    (tmp_path / "own.zarr").mkdir()
    (tmp_path / "own.zarr" / "thesis.tex").touch()
    with pytest.raises(StoreError, match="is a folder that is no Zarr"):
        check_target(tmp_path / "own.zarr", overwrite=True)
    with pytest.raises(StoreError, match="attribute 'x' holds a object"):
        check_target(tmp_path / "b.csv", attrs={"x": object()})
    for suffix in SUFFIXES:
        check_target(tmp_path / "made" / "later" / f"b.{suffix}", attrs={"n": {"x": np.nan}})
    assert sorted(os.listdir(tmp_path)) == ["a.nc", "own.zarr"]
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(StoreError, match="needs the library h5py") as missing:
        check_target(tmp_path / "c.nc")
    assert missing.value.remedy == "pip install h5py"


def test_check_target_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StoreError, match="cannot be written"):
        check_target(tmp_path / "b.nc")


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    other = xr.Dataset({"v": ("x", [1.0])})
    other.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    other.to_netcdf(tmp_path / "b.nc", engine="scipy")
    other.to_zarr(tmp_path / "a.zarr", consolidated=False)
    other.to_dataframe().to_parquet(tmp_path / "a.parquet")
    other.to_dataframe().to_csv(tmp_path / "a.csv")
    for path in tmp_path.iterdir():
        with pytest.raises(StoreError, match="rankscope") as error:
            load(path)
        assert path.name in str(error.value)
    with pytest.raises(StoreError, match="there is no file"):
        load(tmp_path / "none.nc")


def test_links_are_followed(tmp_path: Path) -> None:
    real = export(run_like(), tmp_path / "real.nc")
    link = tmp_path / "link.nc"
    link.symlink_to(real)
    export(run_like(seed=1), link, overwrite=True)
    assert link.is_symlink()
    assert_same(load(real), run_like(seed=1))
