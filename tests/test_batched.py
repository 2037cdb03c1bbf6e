"""The road of a GPU, run on the CPU: same results, no waiting, memory, checks, overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from matrices import closed_forms, with_spectrum
from places import CPU, DRIVERS, Made, batch_of, reference, solve
from rankscope import linalg
from rankscope.linalg import Workers, batched, devices, singular_values
from rankscope.linalg.batched import BatchedRoad, _Layer, stacked, working_set
from rankscope.linalg.devices import Place, full_precision
from rankscope.status import Status


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("n", [1, 2, 8, 33])
def test_closed_forms(driver: Any, n: int) -> None:
    forms = closed_forms(n)
    found = solve(torch.from_numpy(np.stack([m for m, _ in forms.values()])), driver=driver)
    expected = np.stack([values for _, values in forms.values()])
    np.testing.assert_allclose(found.spectra[0].singular_values, expected, atol=1e-9)
    assert np.isin(found.spectra[0].status, [Status.ok, Status.refined]).all()


@pytest.mark.parametrize("driver", DRIVERS)
def test_agrees_with_lapack_in_chunks_and_leaves_its_input_alone(driver: Any) -> None:
    batch = batch_of(5)
    before = batch.clone()
    road = BatchedRoad(Made(int(2.5 * working_set((24, 24), driver) / batched.FREE_SHARE)))
    found = solve(batch, road, driver=driver).spectra[0]
    assert road.chunks == [2, 2, 1]
    np.testing.assert_allclose(found.singular_values, reference(batch), atol=1e-9)
    assert (found.status == Status.ok).all()
    assert torch.equal(batch, before)
    tail = torch.from_numpy(with_spectrum(np.logspace(0, -9, 24), 0)[None])
    found = solve(tail, driver=driver).spectra[0]
    np.testing.assert_allclose(found.singular_values[0], np.logspace(0, -9, 24), rtol=1e-5)
    assert found.status[0] == (Status.refined if driver == "gram" else Status.ok)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (1, 5), (5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_rectangles_and_other_types(shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = (10 * torch.rand(3, *shape, generator=generator)).to(dtype)
    for driver in DRIVERS:
        found = solve(batch, driver=driver).spectra[0].singular_values
        np.testing.assert_allclose(found, reference(batch), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e-180, 1e180, 3e307])
def test_squares_stay_in_range(scale: float) -> None:
    batch = torch.diag(torch.tensor([4.0, 3.0], dtype=torch.float64))[None] * scale
    found = solve(batch).spectra[0]
    assert found.status.tolist() == [Status.ok]
    np.testing.assert_allclose(found.singular_values[0] / scale, [4, 3], rtol=1e-12)


@pytest.mark.parametrize("driver", DRIVERS)
def test_bad_matrices_are_named_and_reach_no_solver(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(6).float()
    expected = reference(batch)
    for place, bad in ((0, np.nan), (2, np.inf), (4, -np.inf)):
        batch[place, 3, 5] = bad
    batch[4, 0, 0] = np.nan
    batch[5] = 0
    for name in ("eigvalsh", "svdvals"):
        real = getattr(torch.linalg, name)

        def guarded(matrix: torch.Tensor, real: Any = real) -> torch.Tensor:
            assert bool(torch.isfinite(matrix).all())
            return real(matrix)

        monkeypatch.setattr(torch.linalg, name, guarded)
    for found in solve(batch, driver=driver, centred=(False, True)).spectra:
        assert found.status.tolist() == [5, 0, 5, 0, 5, Status.zero]
        assert np.isnan(found.singular_values[[0, 2, 4]]).all()
        assert (found.singular_values[5] == 0).all()
    found = solve(batch, driver=driver).spectra[0]
    np.testing.assert_allclose(found.singular_values[[1, 3]], expected[[1, 3]], atol=1e-9)


def test_both_spectra_and_what_was_measured_come_in_one_copy() -> None:
    # in float64 the smallest value of a centred matrix, which is 0, would be done again
    batch = batch_of(5).float()
    place = Made(int(2 * working_set((24, 24)) / batched.FREE_SHARE))
    loaded: list[int] = []

    def load(start: int, stop: int) -> torch.Tensor:
        loaded.extend(range(start, stop))
        return batch[start:stop]

    found = BatchedRoad(place).decompose(
        load,
        5,
        (24, 24),
        centred=(False, True),
        measure=lambda p: torch.stack([p.sum(dim=(1, 2)), p.amax(dim=(1, 2))], dim=1),
    )
    assert loaded == [0, 1, 2, 3, 4]
    assert len(place.fetched) == 1
    mean = batch.double() - batch.double().mean(dim=1, keepdim=True)
    np.testing.assert_allclose(found.spectra[0].singular_values, reference(batch), atol=1e-9)
    np.testing.assert_allclose(found.spectra[1].singular_values, reference(mean), atol=1e-7)
    assert found.measured is not None
    np.testing.assert_allclose(found.measured[:, 0], 24, rtol=1e-6)
    np.testing.assert_array_equal(found.measured[:, 1], batch.amax(dim=(1, 2)))


class Waits(TorchDispatchMode):
    """Counts what would make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        kwargs = kwargs or {}
        to_host = getattr(kwargs.get("device"), "type", None) == "cpu"
        if name in ("_local_scalar_dense", "nonzero", "equal") or (name == "_to_copy" and to_host):
            self.seen.append(name)
        return func(*args, **kwargs)


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_loop_never_waits_for_the_device(driver: Any) -> None:
    """Meta tensors have no values: whatever reads one on the host raises."""
    road = BatchedRoad(Made(int(2 * working_set((24, 24), driver) / batched.FREE_SHARE)))
    with Waits() as waits:
        matrices = torch.empty(6, 24, 24, device="meta")
        layer = _Layer(
            lambda start, stop: matrices[start:stop],
            6,
            (24, 24),
            driver,
            (False, True),
            lambda p: p.sum(dim=(1, 2))[:, None],
        )
        packed = road._results(layer)
        assert packed.device.type == "meta"
        assert packed.dtype == torch.float64
        assert tuple(packed.shape) == (6, 1 + 2 * 25 + 1)
    assert road.chunks == [2, 2, 2]
    assert waits.seen == []


def test_the_counter_sees_a_wait() -> None:
    with Waits() as waits:
        values = torch.arange(3.0)
        assert values.sum().item() == 3.0
        assert values.tolist() == [0.0, 1.0, 2.0]
        assert bool(values[values > 0].any())
    assert "_local_scalar_dense" in waits.seen
    waits.seen.clear()
    nothing = torch.empty(3, device="meta")
    with waits, pytest.raises(RuntimeError, match="meta"):
        nothing.sum().item()
    with waits, pytest.raises(NotImplementedError, match="no data"):
        nothing.cpu()
    assert waits.seen == ["_local_scalar_dense", "_to_copy"]


def test_f25_no_vectors_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("vectors were computed")

    for name in ("svd", "eigh", "eig"):
        monkeypatch.setattr(torch.linalg, name, never)
    monkeypatch.setattr(torch, "svd", never)
    batch = torch.diag(torch.tensor([2.0, 1.0])).expand(144, 2, 2)
    for driver in DRIVERS:
        found = solve(batch, driver=driver).spectra[0].singular_values
        np.testing.assert_allclose(found, np.tile([2.0, 1.0], (144, 1)), rtol=1e-12)


def test_later_is_now_on_a_cpu_and_has_the_same_bits() -> None:
    batch = batch_of(9)
    with Workers(2) as pool:
        pending = pool.decompose_later(
            batch.__getitem__,
            9,
            (24, 24),
            centred=(False, True),
            measure=lambda p: p.sum(dim=(1, 2))[:, None],
        )
        assert pending.done()
    found = pending.result()
    for spectrum, centred in zip(found.spectra, (False, True), strict=True):
        expected = singular_values(batch, centred=centred)
        np.testing.assert_array_equal(spectrum.singular_values, expected.singular_values)
        np.testing.assert_array_equal(spectrum.status, expected.status)
    assert found.measured is not None
    np.testing.assert_allclose(found.measured[:, 0], 24, rtol=1e-12)


def test_the_caller_goes_on_while_a_device_decomposes(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(4)
    place = Made()
    monkeypatch.setattr(linalg, "place_of", lambda _: place)
    gate = threading.Event()
    names: list[str] = []

    def held(start: int, stop: int) -> torch.Tensor:
        assert gate.wait(30)
        names.append(threading.current_thread().name)
        return batch[start:stop]

    device = torch.device("cuda", 0)
    with Workers(1) as pool:
        first = pool.decompose_later(batch.__getitem__, 4, (24, 24), device=device, load_many=held)
        second = pool.decompose_later(batch.__getitem__, 4, (24, 24), device=device)
        # both are marked in the caller's thread, before the first has begun
        assert place.marks == [threading.current_thread().name] * 2
        assert not first.done()
        gate.set()
        for pending in (first, second):
            spectrum = pending.result().spectra[0]
            np.testing.assert_allclose(spectrum.singular_values, reference(batch), atol=1e-9)
        assert (
            pool.decompose(batch.__getitem__, 4, (24, 24), device=device).status.tolist()
            == [Status.ok] * 4
        )
    assert names[0].startswith("rankscope-device")
    assert place.left == 3


def test_an_error_on_the_device_is_raised_by_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Made()
    monkeypatch.setattr(linalg, "place_of", lambda _: place)

    def load(i: int) -> torch.Tensor:
        raise ValueError(f"matrix {i} cannot be had")

    with Workers(1) as pool:
        pending = pool.decompose_later(load, 4, (24, 24), device=torch.device("cuda", 0))
        with pytest.raises(ValueError, match="cannot be had"):
            pending.result()
    assert place.left == 1


def test_products_are_full_float32_while_any_context_is_open() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        first, second = full_precision(), full_precision()
        first.__enter__()
        second.__enter__()
        assert torch.get_float32_matmul_precision() == "highest"
        first.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "highest"
        second.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "high"
        seen = []

        def load(start: int, stop: int) -> torch.Tensor:
            seen.append(torch.get_float32_matmul_precision())
            return batch_of(2)

        BatchedRoad(Made()).decompose(load, 2, (24, 24))
        assert seen == ["highest"]
    finally:
        torch.set_float32_matmul_precision(before)


def test_loads_one_by_one_make_a_batch() -> None:
    batch = batch_of(5)
    assert torch.equal(stacked(batch.__getitem__)(1, 4), batch[1:4])
    assert Place(CPU).free() > 0
    assert type(devices.place_of(CPU)) is Place


class Recorded:
    """Stands in for `torch.cuda`'s streams and events: writes down who waited for what."""

    log: ClassVar[list[str]] = []

    def __init__(self, *_: object, blocking: bool = False) -> None:
        self.blocking = blocking

    def record(self, stream: object) -> None:
        self.log.append(f"record on {stream}")

    def wait_event(self, _: object) -> None:
        self.log.append("stream waits for the mark")

    def synchronize(self) -> None:
        self.log.append("host waits, asleep" if self.blocking else "host waits for the stream")


def test_a_cuda_place_waits_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls alone, in their order: there is no device here to run them."""

    @contextmanager
    def entered(_: object) -> Iterator[None]:
        Recorded.log.append("enter")
        yield
        Recorded.log.append("leave")

    real = torch.empty

    def pinned(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        Recorded.log.append(f"pinned {pin_memory}")
        return real(*size, **options)

    stands_in: dict[str, Any] = {
        "Stream": Recorded,
        "Event": Recorded,
        "stream": entered,
        "current_stream": lambda _: "the current stream",
        "current_device": lambda: 1,
        "mem_get_info": lambda _: (1000, 5000),
        "memory_reserved": lambda _: 400,
        "memory_allocated": lambda _: 150,
        "empty_cache": lambda: Recorded.log.append("emptied"),
    }
    for name, stand_in in stands_in.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(Recorded, "log", [])
    place = devices.place_of(torch.device("cuda"))
    assert place.device == torch.device("cuda", 1)
    assert place.free() == 1250
    values = torch.arange(4.0, dtype=torch.float64)
    with place.working(place.mark()):
        found = place.fetch(values)
    np.testing.assert_array_equal(found, values)
    assert Recorded.log == [
        "record on the current stream",
        "enter",
        "stream waits for the mark",
        "pinned True",
        "record on the current stream",
        "host waits, asleep",
        "host waits for the stream",
        "leave",
    ]
    Recorded.log.clear()
    with pytest.raises(ValueError), place.working(None):
        raise ValueError
    assert Recorded.log == ["enter", "host waits for the stream"]
    Recorded.log.clear()
    place.release()
    assert Recorded.log == ["host waits for the stream", "emptied"]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_f25_cuda_agrees_with_this_road_on_the_cpu() -> None:
    batch = batch_of(40, n=96, sharpness=3.0).float()
    there = batch.cuda()
    for driver in DRIVERS:
        expected = solve(batch, driver=driver, centred=(False, True)).spectra
        with Workers(1) as pool:
            pending = [
                pool.decompose_later(
                    there.__getitem__,
                    40,
                    (96, 96),
                    driver=driver,
                    centred=(False, True),
                    device=there.device,
                    load_many=lambda start, stop: there[start:stop],
                )
                for _ in range(2)
            ]
            for one in pending:
                for mine, theirs in zip(expected, one.result().spectra, strict=True):
                    np.testing.assert_allclose(
                        mine.singular_values, theirs.singular_values, atol=1e-9
                    )
                    np.testing.assert_array_equal(mine.status, theirs.status)
