"""Machines by name: the presets, and this one once it has been measured."""

from __future__ import annotations

import os

import pytest

from emssd.errors import ConfigError
from emssd.hardware import HARDWARE
from emssd.machines import PAPER, THIS_MACHINE, machine_named, machines, this_machine
from emssd.measured_machine import save_calibration
from emssd.paper import paper_machine
from emssd.ui.numbers_link import link_of, read_link
from emssd.ui.numbers_model import curves
from emssd.ui.numbers_settings import default_settings
from tests.test_measured_machine import ENVIRONMENT, machine


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path))


def test_the_presets_alone_where_nothing_was_measured():
    assert machines() == {PAPER: paper_machine(), **HARDWARE}
    assert this_machine() is None
    with pytest.raises(ConfigError, match="emssd doctor --calibrate"):
        machine_named(THIS_MACHINE)


def test_a_measured_machine_stands_behind_the_presets():
    save_calibration(machine())
    assert list(machines()) == [PAPER, *HARDWARE, THIS_MACHINE]
    assert machine_named(THIS_MACHINE).bandwidth == 20e9
    assert machine_named("l4") is HARDWARE["l4"]


def test_the_newest_readable_measurement_counts():
    older = save_calibration(machine())
    newer = save_calibration(machine(bandwidth=30e9, environment={**ENVIRONMENT, "threads": 4}))
    os.utime(older, (1, 1))
    assert this_machine().bandwidth == 30e9
    newer.write_text("{")
    assert this_machine().bandwidth == 20e9


def test_measuring_again_takes_effect_at_once():
    os.utime(save_calibration(machine()), (1, 1))
    assert this_machine().bandwidth == 20e9
    save_calibration(machine(bandwidth=40e9))
    assert this_machine().bandwidth == 40e9


def test_the_page_offers_it_by_its_measured_type():
    save_calibration(machine())
    settings = default_settings(THIS_MACHINE, "smollm2-135m")
    assert read_link(link_of(settings)) == (settings, [])
    costs = settings.cost_model
    assert costs.weights_ms == pytest.approx(1e3 * 4 * 134_480_000 / 20e9, rel=0.01)
    assert set(curves(settings).lines) >= {"vanilla", "ems-sd"}


def test_an_address_that_asks_for_an_unmeasured_machine_is_told():
    settings, notices = read_link({"hardware": THIS_MACHINE})
    assert settings == default_settings()
    assert len(notices) == 1
