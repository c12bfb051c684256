"""The written page: verdicts, escaping, self-containment, and honesty about what is missing."""

import base64
import copy
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from sklearn.linear_model import LinearRegression

from smle import NetworkRegressor, SafeRegressor
from smle.estimators import without_rules
from smle.report import write_report
from smle.report.judge import judge
from smle.report.page import json_for_script
from support.commands import refused, run
from support.report_rules import HOSTILE


class Parsed(HTMLParser):
    """Tags, the texts of scripts and styles, and all visible text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.raw, self.words, self._inside = [], [], [], None
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = (tag, dict(attrs))

    def handle_endtag(self, tag):
        if self._inside and self._inside[0] == tag:
            self._inside = None

    def handle_data(self, data):
        if self._inside:
            self.raw.append((*self._inside, data))
        else:
            self.words.append(data)


def written(tmp_path, *arguments, **options):
    target = tmp_path / "report.html"
    result = write_report(*arguments, path=target, **options)
    return result, Parsed(target.read_text(encoding="utf-8"))


def test_a_proved_model(braking_folder, braking_table, tmp_path):
    result, page = written(tmp_path, braking_folder, braking_table)
    assert result.verdict == "proved"
    assert "All 4 rules hold for every input of the domain." in page.text
    assert f"smle verify {braking_folder}" in page.text
    assert "When distance is at most near (10) and speed is at least 20, then brake is at least 0.8." in page.text
    assert "distance - 0.8 * speed <= -4 ⟹ brake >= 0.5" in page.text
    assert "0 of 1,500" in page.text
    assert "not recorded" in page.text  # the licence
    assert "Measured on 1,500 rows of the table" not in page.text  # the recorded scores know a plain model
    assert "Measured on 300 validation rows, not proved." in page.text
    for name in ("model.safetensors", "model.json", "rules.yaml", "certificate.json"):
        assert hashlib.sha256((braking_folder / name).read_bytes()).hexdigest() in page.text


def test_an_estimator_without_a_folder(braking_model, tmp_path):
    result, page = written(tmp_path, braking_model)
    assert result.verdict == "proved"
    assert "smle verify MODEL" in page.text


def test_files_that_were_replaced_after_the_check_are_left_out(braking_folder, dose, tmp_path, monkeypatch):
    """The page tells digests of what was checked, also if another model takes its place meanwhile."""
    before = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in braking_folder.iterdir()}

    def judged_then_replaced(record):
        judgement = judge(record)
        dose[0].save(braking_folder, overwrite=True)
        return judgement

    monkeypatch.setattr("smle.report.judge.judge", judged_then_replaced)
    result, page = written(tmp_path, braking_folder)
    assert result.verdict == "proved"
    after = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in braking_folder.iterdir()}
    assert not any(digest in page.text for name, digest in after.items() if digest != before.get(name))
    assert all(digest in page.text for digest in before.values())


def test_an_estimator_that_was_changed_in_memory(braking_model, tmp_path):
    model = copy.deepcopy(braking_model)
    model.description_["seed"] = 1
    result, page = written(tmp_path, model)
    assert result.verdict == "rejected"
    assert "The description was changed after " in page.text
    assert "hold for every input" not in page.text


DAMAGES = {
    "a bit of the weights": ("model.safetensors", lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]),
    "weights cut off": ("model.safetensors", lambda data: data[:100]),
    "a relaxed rule": ("rules.yaml", lambda data: data.replace(b"0.8", b"0.7")),
    "rules that cannot be read": ("rules.yaml", lambda data: b"rules: ["),
    "a certificate that cannot be read": ("certificate.json", lambda data: b"{"),
    "no certificate": ("certificate.json", None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_reported_in_red_and_nothing_is_claimed(braking_folder, tmp_path, damage):
    name, change = DAMAGES[damage]
    place = braking_folder / name
    place.unlink() if change is None else place.write_bytes(change(place.read_bytes()))
    target = tmp_path / "report.html"
    assert run("report", braking_folder, "-o", target).exit_code == 1
    page = target.read_text(encoding="utf-8")
    assert "Do not rely on this model." in page
    assert 'class="verdict rejected"' in page
    assert "hold for every input" not in Parsed(page).text
    assert ">proved<" not in page
    assert "explorer-data" not in [attrs.get("id") for _, attrs in Parsed(page).tags]


def test_command_line(braking_folder, braking_table, tmp_path):
    braking_table.to_csv(tmp_path / "data.csv", index=False)
    target = tmp_path / "page.html"
    done = run("report", braking_folder, "--data", tmp_path / "data.csv", "-o", target, "--json")
    assert done.exit_code == 0
    assert json.loads(done.output) == {"report": str(target), "verdict": "proved", "reason": "", "warning": None}
    assert "Expected data" in refused("report", braking_folder, "--plain", braking_folder)


def test_what_a_report_is_about_is_not_replaced(braking_folder, braking_table, tmp_path):
    data = tmp_path / "data.csv"
    braking_table.to_csv(data, index=False)
    shutil.copytree(braking_folder, tmp_path / "baseline")
    (tmp_path / "link.html").symlink_to(data)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for target in (data, tmp_path / "link.html"):
        assert "is the table itself" in refused("report", braking_folder, "--data", data, "-o", target)
    both = (braking_folder, "--data", data, "--plain", tmp_path / "baseline", "-o")
    for target in (braking_folder / "rules.yaml", tmp_path / "baseline" / "model.json"):
        assert "is a file of the model" in refused("report", *both, target)
    assert "is not called .html" in refused("report", braking_folder, "-o", data)
    assert "it is a folder" in refused("report", braking_folder, "-o", tmp_path)
    assert "a part of the path is a file" in refused("report", braking_folder, "-o", data / "report.html")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_errors_in_a_table_name_the_file(braking_folder, braking_table, plain, tmp_path):
    data = tmp_path / "data.csv"
    braking_table.drop(columns="speed").to_csv(data, index=False)
    assert refused("report", braking_folder, "--data", data).startswith(f"error: {data}: Expected the inputs")
    braking_table.assign(speed=None).to_csv(data, index=False)
    assert refused("report", braking_folder, "--data", data).startswith(f"error: {data}: Input 'speed'")
    braking_table.to_csv(data, index=False)
    plain[0].save(tmp_path / "other")
    other = refused("report", braking_folder, "--data", data, "--plain", tmp_path / "other")
    assert other.startswith("error: Expected a baseline")


def test_no_rules_and_nothing_recorded(plain, tmp_path):
    model, _ = plain
    folder = tmp_path / "model"
    model.save(folder)
    description = json.loads((folder / "model.json").read_text())
    bare = {k: v for k, v in description.items() if k not in ("history", "training", "scores", "provenance")}
    (folder / "model.json").write_text(json.dumps(bare))
    result, page = written(tmp_path, folder)
    assert result.verdict == "no rules"
    assert "No rules: nothing is proved about this model." in page.text
    for name in ("model.safetensors", "model.json"):
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() in page.text
    assert "Training history: not recorded." in page.text
    assert "No table was given and no scores are recorded." in page.text


def test_user_text_stays_text(labels, tmp_path):
    model, table = labels
    _, page = written(tmp_path, model, table, name=f"{HOSTILE}<img src=x onerror=alert(2)>")
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "explorer-data"}, {}]
    assert not any(tag == "img" for tag, _ in page.tags)
    assert page.text.count(HOSTILE) > 3
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    data = next(json.loads(text) for _, attrs, text in page.raw if attrs.get("id") == "explorer-data")
    assert data["rules"][0]["name"] == HOSTILE
    assert data["inputs"][2]["categories"] == ["home", "farm", "<wild> & free"]


def test_json_in_a_script_cannot_end_it():
    hostile = {"</script>": ["<!--", "]]>", "&lt;", "\u2028"]}
    text = str(json_for_script(hostile))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == hostile


def test_the_page_is_complete_in_itself(braking_folder, braking_table, tmp_path):
    _, page = written(tmp_path, braking_folder, braking_table)
    for _, attrs in page.tags:
        assert "style" not in attrs
        for link in (attrs.get("src"), attrs.get("href"), attrs.get("xlink:href")):
            assert link is None or link.startswith(("#", "data:,"))
    assert not re.search(r"@import|url\(", "".join(text for tag, _, text in page.raw if tag == "style"))
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "Security" in a.get("http-equiv", ""))
    assert policy.startswith("default-src 'none'")
    for tag, attrs, text in page.raw:
        if "type" not in attrs:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
    assert (tmp_path / "report.html").stat().st_size < 400_000


def test_an_estimator_without_rules_has_a_page_without_slices(braking_spec, braking_table, tmp_path):
    X, y = braking_table.drop(columns="brake"), braking_table["brake"]
    result, page = written(tmp_path, SafeRegressor(without_rules(braking_spec), LinearRegression()).fit(X, y))
    assert result.verdict == "no rules"
    assert "explorer-data" not in page.text
    for word in ("safe model", "best that obeys", "Rows that break a rule"):  # nothing is safe without rules
        assert word not in page.text


def test_a_plain_baseline_is_compared_on_the_table(braking_model, braking_spec, braking_table, tmp_path):
    X = braking_table[list(braking_spec.columns)]
    baseline = SafeRegressor(
        without_rules(braking_spec),
        NetworkRegressor(hidden_layer_sizes=(8,), embedding=8, max_epochs=2),
        random_state=0,
    )
    baseline.fit(X, braking_table["brake"])
    baseline.save(tmp_path / "baseline")
    braking_model.save(tmp_path / "model")
    _, page = written(tmp_path, tmp_path / "model", braking_table, plain=tmp_path / "baseline")
    assert "plain model, nearest allowed" in page.text
    assert "Broken by plain model" in page.text


def test_a_poor_model_is_called_poor(poor, tmp_path):
    model, _ = poor
    result, page = written(tmp_path, model)
    recorded = model.description_["scores"]
    assert result.verdict == "proved"
    assert result.concern == recorded["concern"]
    assert page.text.count("Poor accuracy") == 1
    assert recorded["concern"].replace("R2", "R²") in page.text
    assert "The plain model is a quick one" in page.text
    assert "Scores by output" in page.text
    for item in recorded["outputs"]:
        assert f"{item['score']['safe']:.4f}" in page.text
    model.save(tmp_path / "model")
    done = run("report", tmp_path / "model", "-o", tmp_path / "page.html")
    assert f"WARNING: {recorded['concern']}" in done.output


def test_a_poor_model_is_found_on_a_table_with_a_baseline(poor, tmp_path):
    """Nothing is recorded; what the table says beside a good baseline is enough."""
    table, spec = poor[1], poor[0].specification_
    network = NetworkRegressor(hidden_layer_sizes=(8,), embedding=4, max_epochs=1)
    model = SafeRegressor(spec, network, random_state=0, compare=False)
    model.fit(table, table[["dose", "second"]])
    assert written(tmp_path, model, table)[0].concern == ""  # there is nothing to compare with
    baseline = SafeRegressor(
        without_rules(spec), NetworkRegressor(hidden_layer_sizes=(32,), embedding=16, max_epochs=100), random_state=0
    )
    baseline.fit(table, table[["dose", "second"]])
    result, page = written(tmp_path, model, table, plain=baseline)
    assert "on 400 rows of the table" in result.concern
    assert "Poor accuracy" in page.text
    quiet, page = written(tmp_path, baseline, table)
    assert quiet.concern == ""
    assert "Poor accuracy" not in page.text


def test_rejected_models_show_no_accuracy(poor, tmp_path):
    poor[0].save(tmp_path / "model")
    (tmp_path / "model" / "rules.yaml").write_text("inputs: {}\n")
    result, page = written(tmp_path, tmp_path / "model")
    assert result.verdict == "rejected"
    assert "ccuracy" not in page.text.split("Model card")[0]


def test_names_of_folders(braking_folder, tmp_path):
    _, page = written(tmp_path, braking_folder)
    assert f"{braking_folder.parent.name}/model" in page.text
    moved = shutil.copytree(braking_folder, tmp_path / "brake-7")
    _, page = written(tmp_path, moved)
    assert ("h1", {}) in page.tags
    assert "brake-7" in page.text
