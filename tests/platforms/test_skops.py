"""skops: a model goes through a file without pickle; whoever loads it checks the certificate that comes out."""

import io
import zipfile

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from smle import NetworkRegressor, SafeRegressor
from smle.errors import CertificateError

skops = pytest.importorskip("skops.io")
pytestmark = pytest.mark.audit
COLUMNS = ["distance", "speed", "friction"]


@pytest.mark.parametrize("estimator", [NetworkRegressor(max_epochs=2), Ridge()])
def test_a_model_comes_back_and_a_changed_file_is_noticed(braking_spec, braking_table, estimator):
    model = SafeRegressor(braking_spec, estimator, compare=False, random_state=0).fit(
        braking_table[COLUMNS], braking_table["brake"]
    )
    data = skops.dumps(model)
    trusted = skops.get_untrusted_types(data=data)
    assert all(name.startswith(("smle", "fractions.", "sklearn.")) for name in trusted)
    again = skops.loads(data, trusted=trusted)
    assert again.certificate_.check()
    X = braking_table[COLUMNS]
    assert np.array_equal(again.predict(X), model.predict(X))

    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"-4/5", b"-3/5"))
    with pytest.raises(CertificateError):
        skops.loads(changed.getvalue(), trusted=trusted).certificate_.check()
