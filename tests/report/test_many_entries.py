"""Pages about a table of 2,000 numbers read as those about ten: by the name of the table, with few bars, and small."""

import numpy as np
import pandas as pd

from smle import Specification, diagnose
from smle.report import write_rules_page


def test_two_thousand_entries_make_a_short_page(tmp_path):
    rng, articles = np.random.default_rng(0), [f"a{i:04}" for i in range(2000)]
    caps = dict(zip(articles, rng.uniform(10, 100, 2000).round(2).tolist(), strict=True))
    spec = Specification.build(
        inputs={"article": {"categories": articles}, "demand": (0, 100)},
        outputs=["price"],
        tables={"cap": {"key": "article", "values": caps}},
        rules={"list": "price <= cap[article]", "busy": ("demand >= cap[article]", "price <= 1.1 * cap[article]")},
    )
    names = rng.choice(articles, 3000)
    table = pd.DataFrame({"article": names, "demand": rng.uniform(0, 100, 3000)})
    table["price"] = np.array([caps[name] for name in names]) * rng.uniform(0.5, 1.05, 3000)
    page = write_rules_page(diagnose(spec, table, table), tmp_path / "rules.html", table=table, name="shop")
    text = page.read_text()
    assert len(text) < 150_000
    assert "every input of the domain  ⟹  price &lt;= cap[article]" in text
    assert "demand &gt;= cap[article]  ⟹  price &lt;= 1.1 * cap[article]" in text
    assert "article=a0000" not in text
    assert "of 2,000 the 12 with the most such rows" in text
