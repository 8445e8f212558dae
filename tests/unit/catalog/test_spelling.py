"""Accelerators as users write them."""

import pytest

from gpufabric.catalog.rows import Gpu
from gpufabric.catalog.spelling import read_model, spellings

MODELS = (
    *("H100", "H200", "B200", "B300", "GB200", "GB300", "A100", "A10", "A10G", "L4", "L40", "L40S"),
    *("MI300X", "RTX PRO 6000", "Trn1", "Trn2", "V100"),
)


@pytest.mark.parametrize(
    ("written", "model", "gb", "form"),
    [
        ("H100", "H100", None, None),
        ("h100", "H100", None, None),
        ("H100-80GB", "H100", 80, None),
        ("H100-SXM", "H100", None, "SXM"),
        ("H100-SXM5-80GB", "H100", 80, "SXM"),
        ("nvidia-h100-80gb-hbm3", "H100", 80, None),
        ("NVIDIA H100 80GB HBM3", "H100", 80, None),
        ("H100-PCIe", "H100", None, "PCIe"),
        ("H100_NVLINK_80GB", "H100", 80, "SXM"),
        ("H100-NVL", "H100", None, "NVL"),
        ("A100-SXM-40GB", "A100", 40, "SXM"),
        ("H200-SXM-141GB", "H200", 141, "SXM"),
        ("H200-SXM5-141GB", "H200", 141, "SXM"),
        ("H100-NVL-94GB", "H100", 94, "NVL"),
        ("A100-80GB", "A100", 80, None),
        ("A10080GB", "A100", 80, None),
        ("a100-40g", "A100", 40, None),
        ("A10", "A10", None, None),
        ("A10G", "A10G", None, None),
        ("A10G-24GB", "A10G", 24, None),
        ("L4", "L4", None, None),
        ("L40", "L40", None, None),
        ("L40S", "L40S", None, None),
        ("Tesla-V100-SXM2-32GB", "V100", 32, "SXM"),
        ("GB200", "GB200", None, None),
        ("GB200-NVL72", "GB200", None, None),
        ("B300", "B300", None, None),
        ("MI300X", "MI300X", None, None),
        ("AMD Instinct MI300X OAM", "MI300X", None, "OAM"),
        ("rtx-pro-6000", "RTX PRO 6000", None, None),
        ("RTXPRO6000", "RTX PRO 6000", None, None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000", None, None),
        ("trn2", "Trn2", None, None),
        ("Trainium2", "Trn2", None, None),
        ("trainium", "Trn1", None, None),
    ],
)
def test_a_spelling_means_one_model(written, model, gb, form):
    wanted = read_model(written, spellings(MODELS))
    assert wanted is not None
    assert (wanted.model, wanted.gb, wanted.form) == (model, gb, form)


@pytest.mark.parametrize("written", ["H10O", "H100X", "Z9", "", "80GB", "H", "A1000", "H100-fast"])
def test_what_means_no_model_is_not_guessed(written):
    assert read_model(written, spellings(MODELS)) is None


def fits(written, gpu):
    wanted = read_model(written, spellings([gpu.model]))
    return wanted is not None and wanted.fits(gpu)


def test_memory_tells_two_products_apart():
    assert fits("A100-80GB", Gpu(model="A100", count=8, label_gb=80))
    assert not fits("A100-80GB", Gpu(model="A100", count=8, label_gb=40))
    assert not fits("H100-80GB", Gpu(model="H100", count=8, label_gb=94))


def test_one_product_is_sold_under_several_sizes():
    for size in (262.5, 268.6, 270, 288):
        assert fits("B300-288GB", Gpu(model="B300", count=8, memory_gib_each=size)) == (
            abs(size - 288) <= 0.08 * 288
        )


def test_form_is_compared_where_it_is_known():
    assert not fits("H100-SXM", Gpu(model="H100", count=1, form="PCIe"))
    assert fits("H100-SXM", Gpu(model="H100", count=1, form="SXM"))
    assert fits("H100-SXM", Gpu(model="H100", count=1))


def test_a_size_that_is_not_known_does_not_fit_a_size_that_was_asked_for():
    assert not fits("H100-80GB", Gpu(model="H100", count=8))
