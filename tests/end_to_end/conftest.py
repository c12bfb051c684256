import pytest

from smle.demo import BRAKING_RULES


@pytest.fixture
def files(tmp_path, braking_table):
    """A folder with data.csv and rules.yaml."""
    braking_table.to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "rules.yaml").write_text(BRAKING_RULES)
    return tmp_path
