"""Names of devices."""

import pytest
import torch

from eligo.errors import InputError
from eligo.pretrained.devices import resolve_device


def test_available_devices_are_accepted():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [("foo", "expected auto, cpu or cuda"), ("cuda:99", "cannot be used here"), ("meta", "meta")],
)
def test_unavailable_devices_are_refused(name, message):
    with pytest.raises(InputError, match=message) as caught:
        resolve_device(name)
    assert "\n" not in str(caught.value)
